// What runs inside a MiniWoB++ page: starting an episode from a seed, and reading what a person could see.
// `palaestraStart(seed)` and `palaestraRead()` stand in the page's window; the page's own `core` does the rest.

window.palaestraStart = function (seed) {
  core.EPISODE_MAX_TIME = 2147483647; // no limit of time: what a policy thinks, and for how long, changes no reward
  if (window.jQuery) jQuery.fx.off = true; // animations would make what is seen a matter of timing
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

  // Where a click hits it: a text that runs over several lines has a box for each, of which the first is taken.
  function boxOf(info, element) {
    const lines = info.tag === 't' ? [] : element.getClientRects();
    return lines.length > 1 ? lines[0] : info;
  }

  // A point where a click hits it: the middle, or, where that is covered by something, a point near a corner. None for
  // what is hidden altogether, under a dialog or outside of a list that scrolls.
  function gripOf(info, element) {
    const box = boxOf(info, element);
    const places = /^input_(date|time)$/i.test(info.tag) ? [[8 / box.width, 0.5]] // the first of its segments
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
    const drawn = element instanceof SVGTextElement && element.parentNode === top.parentNode; // on a sign of its own
    return drawn || info.tag === 't' && top.contains(element);
  }

  function listens(element) {
    const events = window.jQuery && jQuery._data(element, 'events');
    return element.onclick || element.__onclick || events && events.click; // as plain pages, d3 and jQuery keep them
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
