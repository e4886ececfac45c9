//! A browser without a window, driven over a pipe by the protocol of its developer tools.
//!
//! Crates for that protocol bring clients for HTTP and TLS with them. Over a pipe it needs neither: messages are JSON, each
//! with a zero byte behind it, on the descriptors 3 and 4 of the browser.

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde_json::{Value, json};
use tempfile::TempDir;

/// Longer than a browser ever takes on a busy machine; then the test fails instead of waiting.
const PATIENCE: Duration = Duration::from_secs(120);

/// What Chromium may be called.
const NAMES: [&str; 4] = ["chromium", "chromium-browser", "google-chrome-stable", "google-chrome"];

const OPTIONS: [&str; 12] = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--hide-scrollbars",
    "--force-color-profile=srgb",
    "--remote-debugging-pipe",
];

/// A browser with one page.
pub(crate) struct Browser {
    process: Child,
    to: ChildStdin,
    from: Receiver<Value>,
    last_id: u64,
    session: String,
    /// What the page told unasked.
    events: Vec<Value>,
    _profile: TempDir,
}

impl Browser {
    /// Where Chromium is: what `CHROMIUM` says, or the first of its names that is in the path.
    pub(crate) fn find() -> Option<PathBuf> {
        let named = std::env::var_os("CHROMIUM").map(PathBuf::from);
        let path = std::env::var_os("PATH").unwrap_or_default();
        let found = std::env::split_paths(&path)
            .flat_map(|folder| NAMES.map(|name| folder.join(name)))
            .find(|file| file.is_file());
        named.or(found)
    }

    pub(crate) fn start() -> Self {
        let chromium = Self::find().expect("Chromium is needed: install it, or set CHROMIUM");
        let profile = tempfile::tempdir().unwrap();
        let mut process = Command::new("sh")
            .args(["-c", "exec \"$0\" \"$@\" 3<&0 4>&1 0</dev/null 1>/dev/null"])
            .arg(chromium)
            .args(OPTIONS)
            .arg(format!("--user-data-dir={}", profile.path().display()))
            .arg("about:blank")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let to = process.stdin.take().unwrap();
        let mut stdout = BufReader::new(process.stdout.take().unwrap());
        let (sender, from) = mpsc::channel();
        // It ends with the browser.
        std::thread::spawn(move || {
            let mut message = Vec::new();
            while stdout.read_until(0, &mut message).is_ok_and(|len| len > 0) {
                message.pop();
                let value = serde_json::from_slice(&message).unwrap();
                if sender.send(value).is_err() {
                    return;
                }
                message.clear();
            }
        });
        let (session, events) = (String::new(), Vec::new());
        let mut browser = Self { process, to, from, last_id: 0, session, events, _profile: profile };
        let target = browser.call("Target.createTarget", json!({"url": "about:blank"}));
        let attached =
            browser.call("Target.attachToTarget", json!({"targetId": target["targetId"], "flatten": true}));
        browser.session = attached["sessionId"].as_str().unwrap().to_owned();
        for domain in ["Page", "Runtime", "Network", "Log"] {
            browser.call(&format!("{domain}.enable"), json!({}));
        }
        browser
    }

    /// Calls a method and waits for its result.
    pub(crate) fn call(&mut self, method: &str, params: Value) -> Value {
        self.last_id += 1;
        let mut message = json!({"id": self.last_id, "method": method, "params": params});
        if !self.session.is_empty() {
            message["sessionId"] = json!(self.session);
        }
        let mut bytes = serde_json::to_vec(&message).unwrap();
        bytes.push(0);
        self.to.write_all(&bytes).unwrap();
        self.to.flush().unwrap();
        loop {
            let message =
                self.from.recv_timeout(PATIENCE).unwrap_or_else(|_| panic!("no answer to {method}"));
            if message["id"] == json!(self.last_id) {
                assert!(message["error"].is_null(), "{method}: {}", message["error"]);
                return message["result"].clone();
            }
            self.events.push(message);
        }
    }

    /// Opens a page and waits until it says that it is ready.
    pub(crate) fn open(&mut self, page: &Path) {
        self.events.clear();
        self.call("Page.navigate", json!({"url": format!("file://{}", page.display())}));
        let is_ready = "document.body?.dataset.ready !== undefined";
        let begun = std::time::Instant::now();
        while self.evaluate(is_ready) != json!(true) {
            assert!(begun.elapsed() < PATIENCE, "the page is not ready; {:?}", self.complaints());
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// The value of an expression, or of what it promises.
    pub(crate) fn evaluate(&mut self, expression: &str) -> Value {
        let params = json!({"expression": expression, "returnByValue": true, "awaitPromise": true});
        let result = self.call("Runtime.evaluate", params);
        let thrown = &result["exceptionDetails"];
        assert!(thrown.is_null(), "{expression}: {}", thrown["exception"]["description"]);
        result["result"]["value"].clone()
    }

    /// Waits until what changed is drawn.
    pub(crate) fn settle(&mut self) {
        let twice =
            "new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => done(true))))";
        self.evaluate(twice);
    }

    /// Presses a key and lets go of it.
    pub(crate) fn press(&mut self, key: &str) {
        let (code, text) = match key {
            "Enter" => (13, "\r"),
            "Tab" => (9, ""),
            "PageUp" => (33, ""),
            "PageDown" => (34, ""),
            "End" => (35, ""),
            "Home" => (36, ""),
            "ArrowLeft" => (37, ""),
            "ArrowUp" => (38, ""),
            "ArrowRight" => (39, ""),
            "ArrowDown" => (40, ""),
            "Escape" => (27, ""),
            one if one.chars().count() == 1 => (0, one),
            other => panic!("the key {other} is not known"),
        };
        let kind = if text.is_empty() { "rawKeyDown" } else { "keyDown" };
        let down = json!({
            "type": kind, "key": key, "code": key, "text": text, "windowsVirtualKeyCode": code,
        });
        self.call("Input.dispatchKeyEvent", down);
        self.call(
            "Input.dispatchKeyEvent",
            json!({"type": "keyUp", "key": key, "code": key, "windowsVirtualKeyCode": code}),
        );
        self.settle();
    }

    /// Writes text as if it were typed.
    pub(crate) fn type_text(&mut self, text: &str) {
        self.call("Input.insertText", json!({"text": text}));
        self.settle();
    }

    /// Presses the mouse at a place, moves it to another and lets go.
    pub(crate) fn drag(&mut self, from: (f64, f64), to: (f64, f64)) {
        for (kind, (x, y)) in [("mousePressed", from), ("mouseMoved", to), ("mouseReleased", to)] {
            let params =
                json!({"type": kind, "x": x, "y": y, "button": "left", "buttons": 1, "clickCount": 1});
            self.call("Input.dispatchMouseEvent", params);
        }
        self.settle();
    }

    /// The size of the window, and whether the system asks for dark colours.
    pub(crate) fn set_window(&mut self, width: u32, height: u32, is_dark: bool) {
        let metrics =
            json!({"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600});
        self.call("Emulation.setDeviceMetricsOverride", metrics);
        let scheme = if is_dark { "dark" } else { "light" };
        let media = json!({"features": [{"name": "prefers-color-scheme", "value": scheme}]});
        self.call("Emulation.setEmulatedMedia", media);
        self.settle();
    }

    /// A picture of the whole page.
    pub(crate) fn take_picture(&mut self, path: &Path) {
        let picture =
            self.call("Page.captureScreenshot", json!({"format": "png", "captureBeyondViewport": true}));
        std::fs::write(path, BASE64.decode(picture["data"].as_str().unwrap()).unwrap()).unwrap();
    }

    /// Errors, and whatever the page asked for that is not itself.
    pub(crate) fn complaints(&mut self) -> Vec<String> {
        // What is on its way is read with an answer behind it.
        self.call("Runtime.evaluate", json!({"expression": "0"}));
        let is_own = |url: &str| url.starts_with("file://") && url.ends_with(".html");
        let complaint = |event: &Value| {
            let params = &event["params"];
            match event["method"].as_str()? {
                "Runtime.exceptionThrown" => Some(params["exceptionDetails"].to_string()),
                "Runtime.consoleAPICalled" => Some(params["args"].to_string()),
                "Log.entryAdded" => Some(params["entry"].to_string()),
                "Network.requestWillBeSent" => {
                    let url = params["request"]["url"].as_str()?;
                    (!is_own(url)).then(|| format!("asks for {url}"))
                }
                _ => None,
            }
        };
        self.events.iter().filter_map(complaint).collect()
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
