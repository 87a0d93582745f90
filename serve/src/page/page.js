// Brings what changes up to date, every two seconds while the page is seen.
const live = document.getElementById("live");
setInterval(async () => {
  if (document.hidden) return;
  try {
    const reply = await fetch("/live");
    if (!reply.ok) throw new Error(reply.status);
    const html = await reply.text();
    // Where the reader is in each table.
    const tables = () => [...live.querySelectorAll(".wide")];
    const places = tables().map(each => [each.scrollLeft, each === document.activeElement]);
    // The program has escaped all text in it.
    live.innerHTML = html;
    tables().forEach((each, index) => {
      const [left, hasFocus] = places[index] ?? [0, false];
      each.scrollLeft = left;
      if (hasFocus) each.focus({ preventScroll: true });
    });
  } catch {
    document.title = "No answer - portcullis-serve";
    return;
  }
  document.title = "portcullis-serve";
}, 2000);
