// Scenes of the report: frames with arrows and a ghost, drawn by 3Dmol, one WebGL context for each scene in sight.
"use strict";

const point = ([x, y, z]) => ({ x, y, z });

function xyz(symbols, positions) {
  const lines = positions.map((position, atom) => [symbols[atom], ...position].join(" "));
  return [symbols.length, "", ...lines].join("\n");
}

function drawFrame(viewer, frame) {
  viewer.removeAllModels();
  viewer.removeAllShapes();
  viewer.removeAllLabels();
  if (frame.ghost) {
    const ghost = viewer.addModel(xyz(frame.symbols, frame.ghost), "xyz");
    ghost.setStyle({}, { stick: { radius: 0.09, color: "#999999", opacity: 0.45 }, sphere: { scale: 0.26, color: "#999999", opacity: 0.45 } });
  }
  const model = viewer.addModel(xyz(frame.symbols, frame.positions), "xyz");
  model.setStyle({}, { stick: { radius: 0.09 }, sphere: { scale: 0.26 } });
  for (const [start, end] of frame.edges || []) {
    viewer.addLine({ start: point(start), end: point(end), color: "#777777" });
  }
  if (frame.marked !== undefined) {
    const name = frame.symbols[frame.marked] + frame.marked;
    viewer.addLabel(name, { position: point(frame.positions[frame.marked]), fontSize: 13, fontColor: "#222222", backgroundColor: "white", backgroundOpacity: 0.7 });
  }
  for (const arrows of frame.arrows) {
    arrows.start.forEach((start, atom) => {
      const end = arrows.end[atom];
      if (Math.hypot(...end.map((value, axis) => value - start[axis])) > 0.02) {
        viewer.addArrow({ start: point(start), end: point(end), radius: 0.06, radiusRatio: 2, mid: 0.75, color: arrows.colour });
      }
    });
  }
}

function prepare(box) {
  const { frames } = JSON.parse(box.querySelector("script").textContent);
  const stage = box.querySelector(".stage");
  const slider = box.querySelector("input");
  const button = box.querySelector("button");
  const label = box.querySelector("output");
  let viewer = null;
  let view = null; // kept while the scene is out of sight
  let timer = null;

  function show() {
    const frame = frames[slider ? Number(slider.value) : 0];
    label.textContent = frame.label;
    if (viewer) {
      drawFrame(viewer, frame);
      viewer.render();
    }
  }

  function open() {
    viewer = $3Dmol.createViewer(stage, { backgroundColor: "white", antialias: true });
    show();
    if (view) {
      viewer.setView(view);
    } else {
      viewer.zoomTo();
      viewer.zoom(1.4);
      viewer.rotate(25, "x");
      viewer.rotate(20, "y");
    }
    viewer.render();
    box.dataset.drawn = "yes";
  }

  function close() { // browsers allow about sixteen contexts in a page
    view = viewer.getView();
    stop();
    const canvas = stage.querySelector("canvas");
    const context = canvas.getContext("webgl2") || canvas.getContext("webgl");
    context.getExtension("WEBGL_lose_context")?.loseContext();
    stage.replaceChildren();
    viewer = null;
  }

  function stop() {
    clearInterval(timer);
    timer = null;
    if (button) button.textContent = "Play";
  }

  function play() {
    if (timer) return stop();
    button.textContent = "Pause";
    timer = setInterval(() => {
      slider.value = (Number(slider.value) + 1) % frames.length;
      show();
    }, 100);
  }

  // The wheel scrolls the page; with Ctrl it zooms.
  stage.addEventListener("wheel", (event) => { if (!event.ctrlKey) event.stopPropagation(); }, { capture: true });
  slider?.addEventListener("input", show);
  button?.addEventListener("click", play);
  show();
  new IntersectionObserver(([entry]) => {
    if (entry.isIntersecting && !viewer) open();
    if (!entry.isIntersecting && viewer) close();
  }).observe(stage);
}

document.querySelectorAll(".scene").forEach(prepare);
