// Brings what changes up to date, every two seconds while the page is seen.
const live = document.getElementById("live");
setInterval(async () => {
  if (document.hidden) return;
  try {
    const reply = await fetch("/live");
    if (!reply.ok) throw new Error(reply.status);
    // The program has escaped all text in it.
    live.innerHTML = await reply.text();
  } catch {
    document.title = "No answer - portcullis-serve";
    return;
  }
  document.title = "portcullis-serve";
}, 2000);
