// Gives each command a button that copies it.
"use strict";
for (const command of document.querySelectorAll("pre.command")) {
  const button = command.appendChild(document.createElement("button"));
  button.className = "copy";
  button.textContent = "Copy";
}

// One listener: the page clones commands.
document.addEventListener("click", async ({ target }) => {
  if (!target.matches("button.copy")) return;
  const code = target.parentNode.querySelector("code");
  try {
    await navigator.clipboard.writeText(code.textContent);
    target.textContent = "Copied";
  } catch {
    getSelection().selectAllChildren(code); // a page without TLS has no clipboard
    target.textContent = "Ctrl+C";
  }
  setTimeout(() => (target.textContent = "Copy"), 2000);
});
