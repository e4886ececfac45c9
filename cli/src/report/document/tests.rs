use super::*;

/// The content of an element of the page.
fn content<'a>(page: &'a str, begin: &str, end: &str) -> &'a str {
    let (_, behind) = page.split_once(begin).unwrap();
    behind.split_once(end).unwrap().0
}

#[test]
fn only_the_data_differs_from_page_to_page() {
    let (one, other) = (page(b"one"), page(b"</script>"));
    let [data, another] = [&one, &other].map(|page| content(page, "id=\"data\">", "</script>"));
    assert_ne!(data, another);
    assert_eq!(one.replace(data, ""), other.replace(another, ""));
    for data in [data, another] {
        assert!(data.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"+/=".contains(&byte)), "{data}");
    }
}

#[test]
fn the_policy_allows_the_pages_own_program_and_style_and_nothing_else() {
    let page = page(b"");
    let script = content(&page, "<script type=\"module\">", "</script>");
    let style = content(&page, "<style>", "</style>");
    let policy = content(&page, "Content-Security-Policy\" content=\"", "\"");
    assert_eq!(script, SCRIPTS.concat(), "nothing in the program ends its element");
    assert_eq!(style, STYLE);
    let expected = format!(
        "default-src 'none'; script-src '{}'; style-src '{}'; base-uri 'none'; form-action 'none'",
        hash(script),
        hash(style)
    );
    assert_eq!(policy, expected);
    // What a browser would take for the beginning of a comment that hides the end of the element.
    assert!(!script.contains("<!--") && !script.contains("<script"));
    // Known from `printf abc | openssl dgst -sha256 -binary | base64`.
    assert_eq!(hash("abc"), "sha256-ungWv48Bz+pBQUDeXa4iI7ADYaOWF3qctBD/YfIAFa0=");
}

#[test]
fn the_page_names_no_other_place() {
    let page = page(b"");
    // The name of a kind of XML is no address that anything asks for, and what begins with `#` is in the page.
    let page = page.replace("http://www.w3.org/2000/svg", "").replace("url(#", "");
    for address in ["http:", "https:", "//www", "@import", "url(", "import ", "XMLHttpRequest", "fetch("] {
        assert!(!page.contains(address), "{address}");
    }
}

#[test]
fn programs_write_text_and_no_html() {
    for script in SCRIPTS {
        for way in ["innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "Function("] {
            assert!(!script.contains(way), "{way}");
        }
    }
}
