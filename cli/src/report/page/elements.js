// Elements of the page. Text is only ever set as text, so nothing in a snapshot becomes HTML.

function byId(id) {
  return document.getElementById(id);
}

// An element with attributes and children, which are elements or texts.
function element(tag, attributes = {}, children = []) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === true) made.setAttribute(name, "");
    else if (value !== false && value !== undefined) made.setAttribute(name, value);
  }
  made.append(...[children].flat());
  return made;
}

// As `element`, for pictures.
function svg(tag, attributes, children = []) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  return made;
}

function button(text, attributes, whenPressed) {
  const made = element("button", { type: "button", ...attributes }, text);
  made.addEventListener("click", whenPressed);
  return made;
}

// A canvas that fills an element, with the pixels of the screen. `draw(context, width, height)` is called by `paint`.
function makeCanvas(parent, attributes, draw) {
  const canvas = element("canvas", attributes);
  parent.append(canvas);
  const context = canvas.getContext("2d");
  return {
    canvas,
    paint() {
      const { clientWidth: width, clientHeight: height } = canvas;
      if (width === 0 || height === 0) return;
      const scale = window.devicePixelRatio || 1;
      const [wide, high] = [Math.round(width * scale), Math.round(height * scale)];
      if (canvas.width !== wide || canvas.height !== high) {
        canvas.width = wide;
        canvas.height = high;
      }
      context.setTransform(scale, 0, 0, scale, 0, 0);
      context.clearRect(0, 0, width, height);
      draw(context, width, height);
    },
  };
}

// The text that follows the pointer; it is for those who point, and says nothing that is not elsewhere, too.
function showTip(event, lines) {
  const tip = byId("tip");
  tip.replaceChildren(...lines.map((line, index) => element(index === 0 ? "strong" : "span", {}, line)));
  tip.hidden = false;
  const { width, height } = tip.getBoundingClientRect();
  const left = event.clientX + 14 + width > window.innerWidth ? event.clientX - width - 14 : event.clientX + 14;
  const top = Math.min(event.clientY + 14, window.innerHeight - height - 4);
  tip.style.left = `${Math.max(4, left)}px`;
  tip.style.top = `${Math.max(4, top)}px`;
}

function hideTip() {
  byId("tip").hidden = true;
}
