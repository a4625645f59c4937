// Runs before the first paint, so that the page does not move when choose.js takes over.
document.documentElement.classList.add("scripted");
