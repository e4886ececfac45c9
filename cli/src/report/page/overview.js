// The whole history as a strip, with the part that is shown; dragging moves that.
function setUpOverview(panel) {
  const draw = (pen, width, height) => {
    const end = axisEnd(view.device, view.axis);
    const whole = makeFrame(width, height);
    const scale = (whole.right - whole.left) / end;
    const places = whole.places;
    const { occupied } = view.device;
    const most = Math.max(1, occupied[view.device.peak]);
    pen.fillStyle = inks.quiet;
    let moment = 0;
    for (let x = whole.left; x < whole.right; x += 1) {
      let high = occupied[moment];
      while (moment < view.device.last && places[moment + 1] <= (x + 1 - whole.left) / scale) {
        moment += 1;
        high = Math.max(high, occupied[moment]);
      }
      pen.fillRect(x, height - (high / most) * height, 1, (high / most) * height);
    }
    const [from, to] = windowNow();
    pen.strokeStyle = inks.accent;
    pen.lineWidth = 2;
    pen.globalAlpha = 0.75;
    pen.fillStyle = inks.paper;
    pen.fillRect(whole.left, 0, from * scale, height);
    pen.fillRect(whole.left + to * scale, 0, (end - to) * scale, height);
    pen.globalAlpha = 1;
    pen.strokeRect(whole.left + from * scale + 1, 1, Math.max(2, (to - from) * scale - 2), height - 2);
  };
  const { canvas, paint } = makeCanvas(panel, { class: "overview", "aria-hidden": "true" }, draw);
  canvas.addEventListener("pointerdown", (event) => canvas.setPointerCapture(event.pointerId));
  const move = (event) => {
    if (event.buttons === 0) return;
    const box = canvas.getBoundingClientRect();
    const share = (event.clientX - box.left - MARGIN.left) / (box.width - MARGIN.left - MARGIN.right);
    const [from, to] = windowNow();
    const centre = share * axisEnd(view.device, view.axis);
    setWindow(centre - (to - from) / 2, centre + (to - from) / 2);
  };
  canvas.addEventListener("pointermove", move);
  canvas.addEventListener("pointerdown", move);
  return paint;
}
