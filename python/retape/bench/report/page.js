"use strict";
// What lies under the pointer. Names only ever become text, never markup.
(() => {
  const tip = document.getElementById("tip");
  let again = null; // looks anew at what was pointed at or focused: scrolling moves it

  const bytes = (count) => {
    // From 100 GiB on; methods differ by some MiB where a step needs some GiB, as in the tables.
    for (const [from, unit, name] of [[100 * 2 ** 30, 2 ** 30, "GiB"], [2 ** 20, 2 ** 20, "MiB"], [2 ** 10, 2 ** 10, "KiB"]]) {
      if (count >= from) return `${(count / unit).toFixed(1)} ${name}`;
    }
    return `${count} B`;
  };

  const show = (lines, x, y) => {
    tip.replaceChildren(...lines.filter(Boolean).map((line) => {
      const div = document.createElement("div");
      div.textContent = line;
      return div;
    }));
    tip.hidden = false;
    const width = tip.offsetWidth, height = tip.offsetHeight;
    const left = x + 16 + width < innerWidth ? x + 16 : x - 16 - width;
    const top = y + 16 + height < innerHeight ? y + 16 : y - 16 - height;
    tip.style.left = `${Math.max(4, Math.min(left, innerWidth - width - 4))}px`;
    tip.style.top = `${Math.max(4, top)}px`;
  };
  const hide = () => {
    tip.hidden = true;
    again = null;
  };
  const look = (asked) => {
    again = asked;
    asked();
  };
  const lies = (thing, x, y) => thing.contains(document.elementFromPoint(x, y));

  for (const point of document.querySelectorAll(".point")) {
    const title = point.querySelector("title");
    const lines = title.textContent.split("\n");
    title.remove(); // or the browser shows it too
    point.addEventListener("pointermove", ({ clientX, clientY }) =>
      look(() => (lies(point, clientX, clientY) ? show(lines, clientX, clientY) : hide())));
    point.addEventListener("pointerleave", hide);
    point.addEventListener("focus", () => look(() => {
      const box = point.getBoundingClientRect();
      show(lines, box.right, box.bottom);
    }));
    point.addEventListener("blur", hide);
  }

  for (const figure of document.querySelectorAll("[data-timeline]")) {
    const svg = figure.querySelector(".scroll svg");
    const here = svg.querySelector(".here"), cursor = svg.querySelector(".cursor");
    const data = JSON.parse(figure.querySelector("script").textContent);
    const [left, top, right, bottom, width] = data.box;
    const count = data.moments.length;
    const across = (step) => left + (step / count) * (right - left);
    const up = (amount) => bottom - (amount / data.most) * (bottom - top);
    const named = data.named.map(([start, end, kind, op, shape, region, size, many]) =>
      ({ start, end, kind, op: data.names[op], shape: data.names[shape], region: data.names[region], size, many }));
    let at = -1, height = 0;

    // Kinds from the bottom up; in a kind what came first is lowest, and what has no name is on top.
    const floor = (step, tensor) => {
      let sum = 0;
      for (let kind = 0; kind < tensor.kind; kind++) sum += data.live[kind][step];
      for (const other of named) {
        if (other === tensor) break;
        if (other.kind === tensor.kind && other.start <= step && step < other.end) sum += other.size;
      }
      return sum;
    };
    const find = (step, amount) => {
      let below = 0;
      for (let kind = 0; kind < data.live.length; kind++) {
        if (amount < below + data.live[kind][step]) {
          for (const tensor of named) {
            if (tensor.kind !== kind || tensor.start > step || step >= tensor.end) continue;
            below += tensor.size;
            if (amount < below) return { kind, tensor };
          }
          return { kind, tensor: null };
        }
        below += data.live[kind][step];
      }
      return null;
    };
    const outline = (tensor) => {
      let over = "", back = "";
      for (let step = tensor.start; step < tensor.end; step++) {
        const low = floor(step, tensor), high = up(low + tensor.size).toFixed(1);
        const from = across(step).toFixed(2), to = across(step + 1).toFixed(2);
        over += `${over ? "L" : "M"}${from},${high}H${to}`;
        back = `L${to},${up(low).toFixed(1)}H${from}${back}`;
      }
      return `${over}${back}Z`;
    };
    const tell = (step, amount, x, y) => {
      at = step;
      height = amount;
      cursor.setAttribute("d", `M${across(step + 0.5).toFixed(1)},${top}V${bottom}`);
      const total = data.live.reduce((sum, levels) => sum + levels[step], 0);
      const found = find(step, amount);
      const tensor = found && found.tensor;
      here.setAttribute("d", tensor ? outline(tensor) : "");
      const lines = [];
      if (tensor) {
        const many = tensor.many > 1 ? `${tensor.many} times, together ` : "";
        lines.push(tensor.op || "outside of any op", `${data.words[found.kind]}: ${many}${bytes(tensor.size)}`,
          tensor.shape && `shape ${tensor.shape}`, tensor.region && `region ${tensor.region}`);
      } else if (found) {
        lines.push(data.words[found.kind], found.kind ? "small allocations" : "");
      }
      const now = data.names[data.ops[step]];
      lines.push(`event ${data.moments[step] + 1} of ${data.events}${now ? `, in ${now}` : ""}: ${bytes(total)} live`);
      show(lines, x, y);
    };
    const leave = () => {
      at = -1;
      here.setAttribute("d", "");
      cursor.setAttribute("d", "");
      hide();
    };
    svg.addEventListener("pointermove", ({ clientX, clientY }) => look(() => {
      const box = svg.getBoundingClientRect(), scale = width / box.width;
      const x = (clientX - box.left) * scale, y = (clientY - box.top) * scale;
      if (x < left || x >= right || y > bottom || !lies(svg, clientX, clientY)) return leave();
      const step = Math.min(count - 1, Math.floor(((x - left) / (right - left)) * count));
      tell(step, ((bottom - y) / (bottom - top)) * data.most, clientX, clientY);
    }));
    svg.addEventListener("pointerleave", leave);
    svg.addEventListener("blur", leave);
    // Left and right walk in time, up and down through what is live then.
    svg.addEventListener("keydown", (event) => {
      const [dx, dy] = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, 1], ArrowDown: [0, -1] }[event.key] || [];
      if (event.key === "Escape") return leave();
      if (dx === undefined) return;
      event.preventDefault();
      const step = Math.max(0, Math.min(count - 1, at + dx));
      const total = data.live.reduce((sum, levels) => sum + levels[step], 0);
      const amount = Math.max(0, Math.min(total - 1, height + (dy * total) / 20));
      look(() => {
        const box = svg.getBoundingClientRect(), scale = box.width / width;
        tell(step, amount, box.left + across(step + 0.5) * scale, box.top + up(amount) * scale);
      });
    });
  }
  // Also of what scrolls inside the page. The event of a scroll may come after a pointer's next move.
  addEventListener("scroll", () => again && again(), { passive: true, capture: true });
})();
