// The mechanics of a site in a browser. `site`, defined above, has the controls with values, the screen and the search.

const rows = new Map(Array.from(document.querySelectorAll('.row'), row => [Number(row.dataset.place), row]));

function shownPlaces() {
  let results = 0;
  return site.controls.map((control, place) => place).filter(place => {
    const control = site.controls[place];
    if (!rows.has(place) || control.screen && control.screen !== site.screen) return false;
    if (control.role !== 'link' || site.screen !== 'results') return true;
    if (!control.name.includes(site.query)) return false;
    results += 1;
    return results > site.perPage * site.page && results <= site.perPage * (site.page + 1);
  });
}

function matches() {
  return site.controls.filter(c => c.role === 'link' && c.screen === 'results' && c.name.includes(site.query)).length;
}

function draw() {
  for (const row of rows.values()) row.style.display = 'none';
  shownPlaces().forEach((place, line) => {
    const row = rows.get(place), control = site.controls[place], input = row.querySelector('input');
    row.style.display = '';
    row.style.top = site.top + site.line * line + 'px';
    if (input && control.role === 'field') input.value = control.value;
    else if (input) input.checked = control.value === 'on';
  });
}

function search() {
  site.query = site.controls.find(control => control.name === 'search').value;
  site.page = 0;
}

function clicked(place) {
  const control = site.controls[place];
  if (control.role === 'checkbox') control.value = control.value === 'on' ? 'off' : 'on';
  if (control.role === 'radio') {
    for (const other of site.controls) if (other.group === control.group) other.value = 'off';
    control.value = 'on';
  }
  if (control.sets) site.controls.find(c => c.name === control.sets[0] && c.role === 'hidden').value = control.sets[1];
  if (control.does === 'search') search();
  if (control.does === 'next' && (site.page + 1) * site.perPage < matches()) site.page += 1;
  if (control.does === 'back' && site.page > 0) site.page -= 1;
  if (control.leads) site.screen = control.leads;
  draw();
}

for (const [place, row] of rows) {
  const control = site.controls[place], input = row.querySelector('input');
  if (control.role === 'field') {
    input.addEventListener('input', () => { control.value = input.value; });
    input.addEventListener('keydown', event => {
      if (event.key === 'Enter' && control.name === 'search') { search(); draw(); }
    });
  } else if (input) input.addEventListener('change', () => clicked(place));
  else row.firstElementChild.addEventListener('click', event => { event.preventDefault(); clicked(place); });
}
window.palaestraState = () => ({ screen: site.screen, values: site.controls.map(control => control.value) });
draw();
