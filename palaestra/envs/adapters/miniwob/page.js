// This script runs inside a MiniWoB++ page. It uses the page's own `core`.
// `palaestraStart(seed)` starts an episode, and `palaestraRead()` returns what a person could see.

window.palaestraStart = function (seed) {
  core.EPISODE_MAX_TIME = 2147483647; // no time limit, so that slow policies get the same reward as fast ones
  if (window.jQuery) jQuery.fx.off = true; // with animations the page would depend on the time of reading
  if (!document.getElementById('palaestra-still')) {
    const style = document.createElement('style');
    style.id = 'palaestra-still';
    style.textContent = '* { transition: none !important; animation: none !important; caret-color: transparent !important; }';
    document.head.appendChild(style);
  }
  core.endEpisode(0);
  if (document.activeElement) document.activeElement.blur();
  Math.seedrandom(seed);
  core.startEpisodeReal();
};

window.palaestraRead = function () {
  if (WOB_DONE_GLOBAL) return { done: true, reward: WOB_RAW_REWARD_GLOBAL, elements: [], utterance: '' };
  const elements = [];
  const inputs = /^(input|textarea|select|button|a)(_|$)/;

  function words(node) { return (node.innerText || node.textContent || '').replace(/\s+/g, ' ').trim(); }

  // The box of an element. An element over several lines has one box for each line; this returns the first.
  function boxOf(info, element) {
    const lines = info.tag === 't' ? [] : element.getClientRects();
    return lines.length > 1 ? lines[0] : info;
  }

  // A point where a click hits the element: its middle or, if that is covered, a point near a corner. Returns null if
  // all these points are hidden, such as under a dialog or outside of the visible part of a list.
  function gripOf(info, element) {
    const box = boxOf(info, element);
    const places = /^input_(date|time)$/i.test(info.tag) ? [[8 / box.width, 0.5]] // its first segment: month or hour
      : [[0.5, 0.5], [0.15, 0.15], [0.85, 0.15], [0.15, 0.85], [0.85, 0.85]];
    for (const [across, down] of places) {
      const x = Math.round(box.left + across * box.width), y = Math.round(box.top + down * box.height);
      const top = document.elementFromPoint(x, y);
      if (top && isHit(info, element, top)) return [x, y];
    }
    return null;
  }

  function isHit(info, element, top) {
    if (element.contains(top) || labelOf(element) && labelOf(element) === labelOf(top)) return true;
    const drawn = element instanceof SVGTextElement && element.parentNode === top.parentNode; // a text on its own shape
    return drawn || info.tag === 't' && top.contains(element);
  }

  function listens(element) {
    const events = window.jQuery && jQuery._data(element, 'events');
    return element.onclick || element.__onclick || events && events.click; // plain handlers, those of d3, of jQuery
  }

  function labelOf(element) { return element.closest ? element.closest('label') : null; }

  function named(element, tag) {
    if (/_(checkbox|radio)$/.test(tag)) {
      const label = labelOf(element) || (element.id && document.querySelector('label[for="' + element.id + '"]'));
      if (label) return words(label);
      let next = element.nextSibling;
      while (next && !words(next)) next = next.nextSibling;
      return next ? words(next) : '';
    }
    if (/^input/.test(tag)) {
      if (/_(submit|button)$/.test(tag)) return element.value;
      return element.placeholder || '';
    }
    return /^(textarea|select)/.test(tag) ? '' : words(element);
  }

  function valueOf(element, tag) {
    if (tag === 'select') return Array.from(element.selectedOptions).map(words).join('|');
    if (/_(checkbox|radio)$/.test(tag)) return element.checked ? 'on' : 'off';
    if (/_(submit|button)$/.test(tag)) return '';
    return /^(input|textarea)/.test(tag) ? element.value : '';
  }

  function add(info, element, tag) {
    const svg = element instanceof SVGElement, box = boxOf(info, element), grip = gripOf(info, element);
    if (grip) elements.push({
      tag: tag, grip: grip, box: [box.left, box.top, box.width, box.height],
      text: tag === 't' ? info.text : named(element, tag), value: valueOf(element, tag),
      color: svg ? element.getAttribute('fill') || '' : info.bgColor || '',
      dom: info.id || '', classes: tag === 't' ? '' : element.getAttribute('class') || '',
      svg: svg,
      options: tag === 'select' ? Array.from(element.options).map(words) : [],
    });
  }

  function walk(info, parent) {
    const tag = info.tag.toLowerCase();
    const element = tag === 't' ? parent : core.previousDOMInfo[info.ref];
    if (inputs.test(tag)) {
      add(info, element, tag);
      return;
    }
    if (tag === 't' && labelOf(parent) && labelOf(parent).querySelector('input')) return;
    const target = tag === 'label' && element.htmlFor && document.getElementById(element.htmlFor);
    if (tag === 'label' && (element.querySelector('input') || target && /^(checkbox|radio)$/.test(target.type))) {
      info.children.forEach(child => walk(child, element));
      return;
    }
    const plain = info.children.length === 0 || info.children.every(child => child.tag === 't');
    if (plain) {
      const seen = info.text || info.children.length;
      const painted = element instanceof SVGElement ? !/^(svg|g|defs)$/.test(tag)
        : /^(img|canvas)$/.test(tag) || listens(element) || !/rgba\(0, 0, 0, 0\)|rgb\(255, 255, 255\)/.test(info.bgColor || '');
      if (seen || painted) add(info, element, tag);
      return;
    }
    info.children.forEach(child => walk(child, element));
  }

  const root = core.getDOMInfo(document.body);
  if (root) walk(root, null);
  return { done: false, reward: 0, elements: elements, utterance: core.getUtterance() };
};
