// One request after the other, and each connection for one request: enough for what is always
// answered in the same way.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <string>

#include "arg.h"
#include "llama.h"
#include "page.h"

namespace {

// SIGTERM and SIGINT as something to read. The first process of a container has no default action
// for them: unhandled they would be ignored. Before any thread starts, so that all block them.
int stop_descriptor() {
    sigset_t stops;
    sigemptyset(&stops);
    sigaddset(&stops, SIGTERM);
    sigaddset(&stops, SIGINT);
    sigprocmask(SIG_BLOCK, &stops, nullptr);
    return signalfd(-1, &stops, SFD_CLOEXEC);
}

// -1, with errno set, where that is not possible.
int listen_on(const std::string& host, int port) {
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<std::uint16_t>(port));
    if (inet_pton(AF_INET, host.c_str(), &address.sin_addr) != 1) {
        errno = EINVAL;
        return -1;
    }
    const int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    const int yes = 1;
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
    const auto* generic = reinterpret_cast<const sockaddr*>(&address);
    const bool bound = bind(listener, generic, sizeof address) == 0 && listen(listener, 16) == 0;
    return bound ? listener : -1;
}

constexpr const char* text = "0123456789ab";  // every answer: a token a character

// What stands between `before` and `after` in the request, or nothing.
std::string part(const std::string& request, const std::string& before, const std::string& after) {
    const std::size_t start = request.find(before);
    if (start == std::string::npos) return "";
    const std::size_t from = start + before.size();
    return request.substr(from, request.find(after, from) - from);
}

// A request's text goes through the model; what is answered does not depend on it. False where
// the device failed.
bool generated(const std::string& request) {
    std::string prompt = part(request, "\"prompt\": \"", "\"");
    if (prompt.empty()) prompt = part(request, "\"content\": \"", "\"");
    return !llama_next_word(prompt).empty();
}

std::string completion() {
    return std::string(R"({"choices":[{"text":")") + text +
           R"("}],"usage":{"completion_tokens":12}})";
}

std::string stream() {
    std::string events;
    for (const char* c = text; *c; ++c) {
        events += std::string(R"(data: {"choices":[{"text":")") + *c + "\"}]}\n\n";
    }
    return events + "data: [DONE]\n\n";
}

std::string tokens(const std::string& content) {
    std::string list;
    for (const char c : content) list += (list.empty() ? "" : ", ") + std::to_string(int{c});
    return "{\"tokens\":[" + list + "]}";
}

std::string characters(const std::string& list) {
    std::string content;
    for (std::size_t at = 0; at < list.size(); at = list.find_first_of("0123456789", at + 3)) {
        content += static_cast<char>(std::stoi(list.substr(at)));
    }
    return "{\"content\":\"" + content + "\"}";
}

// Empty where there is no such page.
std::string page(const std::string& path, const std::string& request) {
    if (path == "/health") return R"({"status":"ok"})";
    if (path == "/v1/models") return R"({"data":[{"id":"tiny"}]})";
    if (path == "/tokenize") return tokens(part(request, "\"content\": \"", "\""));
    if (path == "/detokenize") return characters(part(request, "\"tokens\": [", "]"));
    if (path == "/v1/completions" || path == "/v1/chat/completions") {
        if (!generated(request)) return R"({"error":"the device failed"})";
    }
    if (path == "/v1/completions") {
        return request.find("\"stream\": true") == std::string::npos ? completion() : stream();
    }
    if (path == "/v1/chat/completions") {
        return R"({"choices":[{"message":{"role":"assistant","content":"hello"}}]})";
    }
    return page_file(path == "/" ? "/index.html" : path);
}

std::string type_of(const std::string& path) {
    if (path == "/") return "text/html";
    return path == "/bundle.js" ? "application/javascript" : "application/json";
}

std::string answer_to(const std::string& request) {
    const std::string path = part(request, " ", " ");
    std::string body = page(path, request);
    const char* status = body.empty() ? "404 Not Found" : "200 OK";
    if (body.find("{\"error\"") == 0) status = "500 Internal Server Error";
    if (body.empty()) body = R"({"error":"no such page"})";
    return std::string("HTTP/1.1 ") + status +
           "\r\nContent-Type: " + type_of(path) + "\r\nConnection: close\r\nContent-Length: " +
           std::to_string(body.size()) + "\r\n\r\n" + body;
}

// Whether the head is there, and as much of a body as it tells of.
bool complete(const std::string& request) {
    const std::size_t end = request.find("\r\n\r\n");
    if (end == std::string::npos) return false;
    const std::string length = part(request, "Content-Length: ", "\r\n");
    return length.empty() || request.size() >= end + 4 + std::stoul(length);
}

void serve(int client) {
    // A client that says nothing must not hold up the others, nor the end.
    const timeval patience = {2, 0};
    setsockopt(client, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    setsockopt(client, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof patience);
    std::string request;
    char piece[1024];
    while (!complete(request) && request.size() < 16384) {
        const ssize_t count = recv(client, piece, sizeof piece, 0);
        if (count <= 0) break;
        request.append(piece, static_cast<std::size_t>(count));
    }
    const std::string answer = answer_to(request);
    send(client, answer.data(), answer.size(), MSG_NOSIGNAL);
    close(client);
}

}  // namespace

int main(int argc, char** argv) {
    const int stop = stop_descriptor();
    common_params params;
    if (const auto status = common_params_parse(argc, argv, params)) return *status;
    llama_load(params.gpu_layers);
    const int listener = listen_on(params.host, params.port);
    if (listener < 0) {
        std::perror(("cannot listen on " + params.host).c_str());
        return 1;
    }
    std::fprintf(stderr, "server is listening on http://%s:%d (%s)\n", params.host.c_str(),
                 params.port, llama_device().c_str());
    pollfd waiting[] = {{listener, POLLIN, 0}, {stop, POLLIN, 0}};
    while (poll(waiting, 2, -1) >= 0 && waiting[1].revents == 0) {
        const int client = accept4(listener, nullptr, nullptr, SOCK_CLOEXEC);
        if (client >= 0) serve(client);
    }
    return 0;
}
