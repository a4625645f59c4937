// Fulcio, its CT log and Rekor, as @sigstore/mock has them, on loopback: certificates, timestamps
// and entries are signed with keys of their own. It believes every token.
// node sigstore.cjs MODULE FOLDER: writes trusted_root.json and signing_config.json to FOLDER.
const crypto = require("crypto");
const fs = require("fs");
const http = require("http");
const path = require("path");

const [, , module_, folder] = process.argv;
const mock = require(module_);
const pair = () => crypto.generateKeyPairSync("ec", { namedCurve: "prime256v1" });
const base64 = (bytes) => Buffer.from(bytes).toString("base64");
const write = (name, content) => fs.writeFileSync(path.join(folder, name), JSON.stringify(content));

async function answer(handlers, request, text) {
  const found = handlers.find((each) => each.path === request.url);
  if (!found) return [404, {}, ""];
  const body = JSON.parse(text);
  const token = (request.headers.authorization || "").replace(/^Bearer /, ""); // cosign's place
  if (token) body.credentials = { oidcIdentityToken: token };
  const done = await found.fn(JSON.stringify(body));
  const headers = { "Content-Type": done.contentType || "text/plain" };
  const made = done.statusCode === 201;
  const log = request.url.endsWith("/log/entries");
  if (made && log) headers.ETag = Object.keys(JSON.parse(done.response))[0]; // as Rekor names it
  return [made && !log ? 200 : done.statusCode, headers, done.response]; // Fulcio answers 200
}

(async () => {
  const ctlog = await mock.initializeCTLog(pair());
  const authority = await mock.initializeCA(pair(), ctlog);
  const handlers = [mock.fulcioHandler(authority)];
  const server = http.createServer((request, response) => {
    const parts = [];
    request.on("data", (part) => parts.push(part));
    request.on("end", async () => {
      const [status, headers, text] = await answer(handlers, request, Buffer.concat(parts));
      response.writeHead(status, headers);
      response.end(text);
    });
  });
  server.listen(0, "127.0.0.1", async () => {
    const url = `http://127.0.0.1:${server.address().port}`;
    const log = await mock.initializeTLog(url, pair());
    handlers.push(mock.rekorHandler(log));
    const validFor = { start: new Date(Date.now() - 60000).toISOString() };
    const listed = (key) => ({
      baseUrl: url,
      hashAlgorithm: "SHA2_256",
      logId: { keyId: crypto.createHash("sha256").update(Buffer.from(key)).digest("base64") },
      publicKey: { rawBytes: base64(key), keyDetails: "PKIX_ECDSA_P256_SHA_256", validFor },
    });
    write("trusted_root.json", {
      mediaType: "application/vnd.dev.sigstore.trustedroot+json;version=0.1",
      tlogs: [listed(log.publicKey)],
      ctlogs: [listed(ctlog.publicKey)],
      certificateAuthorities: [
        {
          subject: { commonName: "sigstore", organization: "sigstore.mock" },
          uri: url,
          validFor,
          certChain: { certificates: [{ rawBytes: base64(authority.rootCertificate) }] },
        },
      ],
    });
    const service = { url, majorApiVersion: 1, validFor, operator: "sigstore.mock" };
    write("signing_config.json", {
      mediaType: "application/vnd.dev.sigstore.signingconfig.v0.2+json",
      caUrls: [service],
      rekorTlogUrls: [service],
      rekorTlogConfig: { selector: "ANY" },
      tsaConfig: { selector: "ANY" },
    });
    console.log(url);
  });
})();
