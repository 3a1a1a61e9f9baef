// Scenes of the report: frames with arrows and a ghost, drawn by 3Dmol when they come in sight.
"use strict";

const point = ([x, y, z]) => ({ x, y, z });

function xyz(symbols, positions) {
  return [symbols.length, "", ...positions.map((position, atom) => [symbols[atom], ...position].join(" "))].join("\n");
}

function drawAtoms(viewer, { symbols, positions, bonded }, look) {
  const model = viewer.addModel(xyz(symbols, positions), "xyz");
  model.setStyle({}, { sphere: { scale: 0.3, ...look } });
  model.setStyle({ elem: bonded }, { sphere: { scale: 0.25, ...look }, stick: { radius: 0.09, ...look } });
}

function drawArrows(viewer, arrows) {
  arrows.start.forEach((start, atom) => {
    const end = arrows.end[atom];
    if (Math.hypot(...end.map((value, axis) => value - start[axis])) < 0.02) return;
    viewer.addArrow({
      start: point(start), end: point(end), radius: arrows.radius, radiusRatio: 2, mid: 0.75,
      color: arrows.colour, opacity: arrows.opacity,
    });
  });
}

function drawFrame(viewer, frame) {
  viewer.removeAllModels();
  viewer.removeAllShapes();
  viewer.removeAllLabels();
  drawAtoms(viewer, frame, { colorscheme: "Jmol" });
  if (frame.ghost) drawAtoms(viewer, { ...frame.ghost, bonded: frame.bonded }, { color: "#888888", opacity: 0.5 });
  for (const [start, end] of frame.edges || []) {
    viewer.addLine({ start: point(start), end: point(end), color: "#777777" });
  }
  frame.arrows.forEach((arrows) => drawArrows(viewer, arrows));
  if (frame.marked !== undefined) {
    viewer.addLabel(frame.symbols[frame.marked] + frame.marked, {
      position: point(frame.positions[frame.marked]), fontSize: 13, fontColor: "#222222",
      backgroundColor: "white", backgroundOpacity: 0.7,
    });
  }
}

function prepare(box) {
  const { frames } = JSON.parse(box.querySelector("script").textContent);
  const stage = box.querySelector(".stage");
  const slider = box.querySelector("input");
  const button = box.querySelector("button");
  const label = box.querySelector("output");
  const chosen = () => frames[slider ? Number(slider.value) : 0];
  let viewer = null;
  let timer = null;

  function show() {
    label.textContent = chosen().label;
    if (!viewer) return;
    drawFrame(viewer, chosen());
    viewer.render();
  }

  function open() {
    viewer = $3Dmol.createViewer(stage, { backgroundColor: "white", antialias: true });
    drawFrame(viewer, chosen());
    viewer.zoomTo();
    viewer.zoom(chosen().edges ? 1 : 1.5);
    viewer.rotate(25, "x");
    viewer.rotate(20, "y");
    viewer.render();
    box.dataset.drawn = "yes";
  }

  function play() {
    clearInterval(timer);
    timer = timer ? null : setInterval(() => {
      slider.value = (Number(slider.value) + 1) % frames.length;
      show();
    }, 100);
    button.textContent = timer ? "Pause" : "Play";
  }

  // The wheel scrolls the page; with Ctrl it zooms.
  stage.addEventListener("wheel", (event) => { if (!event.ctrlKey) event.stopPropagation(); }, { capture: true });
  slider?.addEventListener("input", show);
  button?.addEventListener("click", play);
  show();
  const sight = new IntersectionObserver(([entry]) => {
    if (!entry.isIntersecting) return;
    sight.disconnect();
    open();
  });
  sight.observe(stage);
}

document.querySelectorAll(".scene").forEach(prepare);
