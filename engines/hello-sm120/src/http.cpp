#include "http.h"

#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <memory>
#include <string_view>
#include <system_error>
#include <utility>

#include "http_head.h"
#include "json.h"

namespace hello::http {

namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

// Slow clients hold a thread; these bound for how long.
constexpr milliseconds kReceiveTime{10000};
constexpr milliseconds kSendTime{10000};
constexpr milliseconds kLingerTime{500};
// A stop has to be over within a second.
constexpr milliseconds kStopTime{700};

std::atomic<bool> stop_requested{false};
static_assert(std::atomic<bool>::is_always_lock_free, "written by a signal handler");
int stop_pipe[2] = {-1, -1};

extern "C" void on_stop_signal(int) {
    const int saved = errno;
    stop_requested = true;
    // The pipe is never read, and one byte is enough: a full pipe does no harm.
    [[maybe_unused]] const ssize_t written = write(stop_pipe[1], "", 1);
    errno = saved;
}

std::system_error last_error(const char* what) {
    return std::system_error(errno, std::generic_category(), what);
}

// A socket that is closed at the end of its scope.
class Socket {
public:
    explicit Socket(int descriptor) : descriptor_(descriptor) {}
    ~Socket() {
        if (descriptor_ >= 0) close(descriptor_);
    }
    Socket(const Socket&) = delete;
    Socket& operator=(const Socket&) = delete;

    int get() const { return descriptor_; }
    int release() { return std::exchange(descriptor_, -1); }

private:
    int descriptor_;
};

// There is nobody to tell: the client has gone, or the server stops.
struct Gone {};

int poll_timeout(Clock::time_point deadline) {
    const auto left = std::chrono::ceil<milliseconds>(deadline - Clock::now()).count();
    return static_cast<int>(std::max<long long>(left, 0));
}

enum class Wait { ready, timed_out, stopped };

Wait wait_for(int socket, short events, int stop, Clock::time_point deadline) {
    while (true) {
        pollfd polled[2] = {{socket, events, 0}, {stop, POLLIN, 0}};
        const int count = poll(polled, 2, poll_timeout(deadline));
        if (count == 0) return Wait::timed_out;
        if (count < 0) {
            if (errno == EINTR) continue;
            return Wait::stopped;
        }
        // A socket that is ready comes first: answers that are finished still go out.
        if (polled[0].revents != 0) return Wait::ready;
        if (polled[1].revents != 0) return Wait::stopped;
    }
}

bool would_block(int error) {
    return error == EAGAIN || error == EWOULDBLOCK || error == EINTR;
}

bool send_all(int socket, std::string_view data, int stop) {
    const auto deadline = Clock::now() + kSendTime;
    while (!data.empty()) {
        const ssize_t sent = send(socket, data.data(), data.size(), MSG_NOSIGNAL);
        if (sent > 0) {
            data.remove_prefix(static_cast<std::size_t>(sent));
        } else if (sent < 0 && would_block(errno)) {
            if (wait_for(socket, POLLOUT, stop, deadline) != Wait::ready) return false;
        } else {
            return false;
        }
    }
    return true;
}

// A close with unread data resets the connection, and the client may lose the answer to it.
void close_gently(int socket, int stop) {
    shutdown(socket, SHUT_WR);
    const auto deadline = Clock::now() + kLingerTime;
    std::size_t budget = 4 * kMaxBodyBytes;
    char discarded[4096];
    while (budget > sizeof discarded) {
        if (wait_for(socket, POLLIN, stop, deadline) != Wait::ready) return;
        const ssize_t count = recv(socket, discarded, sizeof discarded, 0);
        if (count == 0 || (count < 0 && !would_block(errno))) return;
        budget -= count > 0 ? static_cast<std::size_t>(count) : 0;
    }
}

const char* reason_of(int status) {
    switch (status) {
        case 200: return "OK";
        case 400: return "Bad Request";
        case 404: return "Not Found";
        case 405: return "Method Not Allowed";
        case 408: return "Request Timeout";
        case 413: return "Content Too Large";
        case 431: return "Request Header Fields Too Large";
        case 501: return "Not Implemented";
        case 503: return "Service Unavailable";
        case 505: return "HTTP Version Not Supported";
        default: return "Internal Server Error";
    }
}

const char* type_of(int status) {
    if (status == 404) return "not_found_error";
    return status < 500 ? "invalid_request_error" : "server_error";
}

std::string serialize(const Response& response) {
    std::string text = "HTTP/1.1 " + std::to_string(response.status) + " " +
                       reason_of(response.status) + "\r\n";
    if (!response.allow.empty()) text += "Allow: " + response.allow + "\r\n";
    if (response.events) {
        text += "Content-Type: text/event-stream\r\nCache-Control: no-cache\r\n";
    } else {
        text += "Content-Type: application/json\r\n";
        text += "Content-Length: " + std::to_string(response.body.size()) + "\r\n";
    }
    text += "Connection: close\r\n\r\n";
    return text + response.body;
}

// Reads one request from a connection.
class Reader {
public:
    Reader(int socket, int stop)
        : socket_(socket), stop_(stop), deadline_(Clock::now() + kReceiveTime) {}

    // Throws Refusal or Gone.
    Request read() {
        const std::size_t end = receive_head();
        Head head = parse_head(std::string_view(data_).substr(0, end + 2));
        data_.erase(0, end + kHeadEnd.size());
        if (head.waits_for_continue && data_.size() < head.body_bytes) {
            if (!send_all(socket_, "HTTP/1.1 100 Continue\r\n\r\n", stop_)) throw Gone{};
        }
        while (data_.size() < head.body_bytes) receive();
        data_.resize(head.body_bytes);
        return Request{std::move(head.method), std::move(head.path), std::move(data_)};
    }

private:
    static constexpr std::string_view kHeadEnd = "\r\n\r\n";

    // Returns where the empty line after the head begins.
    std::size_t receive_head() {
        while (true) {
            const std::size_t end = data_.find(kHeadEnd);
            if (std::min(end, data_.size()) > kMaxHeadBytes) {
                throw Refusal{431, "header larger than 16 KiB"};
            }
            if (end != std::string::npos) return end;
            receive();
        }
    }

    void receive() {
        const Wait wait = wait_for(socket_, POLLIN, stop_, deadline_);
        if (wait == Wait::stopped) throw Gone{};
        if (wait == Wait::timed_out) {
            if (data_.empty()) throw Gone{};
            throw Refusal{408, "the request took too long"};
        }
        char buffer[16384];
        const ssize_t count = recv(socket_, buffer, sizeof buffer, 0);
        if (count > 0) {
            data_.append(buffer, static_cast<std::size_t>(count));
        } else if (count == 0 || !would_block(errno)) {
            throw Gone{};
        }
    }

    int socket_;
    int stop_;
    Clock::time_point deadline_;
    std::string data_;
};

Response respond(const Handler& handler, const Request& request) {
    try {
        return handler(request);
    } catch (const std::exception& error) {
        return error_response(500, error.what());
    }
}

void serve_connection(int socket, int stop, const Handler& handler) {
    Response response;
    try {
        response = respond(handler, Reader(socket, stop).read());
    } catch (const Refusal& refusal) {
        response = error_response(refusal.status, refusal.message);
    } catch (const Gone&) {
        return;
    }
    bool there = send_all(socket, serialize(response), stop);
    if (there && response.events) {
        try {
            response.events([&](std::string_view part) {
                there = there && send_all(socket, part, stop);
                return there;
            });
        } catch (const std::exception& error) {
            // The status is sent: all that is left is to end the answer before its end.
            std::fprintf(stderr, "a stream broke off: %s\n", error.what());
        }
    }
    if (there) close_gently(socket, stop);
}

struct FreeAddresses {
    void operator()(addrinfo* addresses) const { freeaddrinfo(addresses); }
};

using Addresses = std::unique_ptr<addrinfo, FreeAddresses>;

Addresses resolve(const std::string& host, int port) {
    addrinfo hints = {};
    hints.ai_socktype = SOCK_STREAM;
    hints.ai_flags = AI_PASSIVE | AI_NUMERICSERV;
    addrinfo* found = nullptr;
    const int error = getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found);
    if (error != 0) throw ListenError("host '" + host + "': " + gai_strerror(error));
    return Addresses(found);
}

void set_flags(int descriptor) {
    fcntl(descriptor, F_SETFL, fcntl(descriptor, F_GETFL) | O_NONBLOCK);
    fcntl(descriptor, F_SETFD, FD_CLOEXEC);
}

// Returns a listening socket, or -1 with errno set.
int listen_on(const addrinfo& address) {
    Socket socket(::socket(address.ai_family, address.ai_socktype, address.ai_protocol));
    if (socket.get() < 0) return -1;
    set_flags(socket.get());
    const int on = 1;
    // A restart need not wait for connections of the last run to time out.
    setsockopt(socket.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (bind(socket.get(), address.ai_addr, address.ai_addrlen) != 0) return -1;
    if (listen(socket.get(), SOMAXCONN) != 0) return -1;
    return socket.release();
}

}  // namespace

Response error_response(int status, const std::string& message) {
    // The message may quote the request, which need not be UTF-8.
    const std::string text = json::is_utf8(message) ? message : reason_of(status);
    Response response;
    response.status = status;
    response.body = "{\"error\":{\"code\":" + std::to_string(status) +
                    ",\"message\":" + json::quote(text) + ",\"type\":\"" + type_of(status) + "\"}}";
    return response;
}

StopSignal::StopSignal() {
    if (pipe(stop_pipe) != 0) throw last_error("pipe");
    set_flags(stop_pipe[0]);
    set_flags(stop_pipe[1]);
    descriptor_ = stop_pipe[0];
    struct sigaction action = {};
    action.sa_handler = on_stop_signal;
    action.sa_flags = SA_RESTART;
    for (const int number : {SIGTERM, SIGINT}) {
        if (sigaction(number, &action, nullptr) != 0) throw last_error("sigaction");
    }
    signal(SIGPIPE, SIG_IGN);
}

const std::atomic<bool>& StopSignal::requested() const { return stop_requested; }

Server::Server(const std::string& host, int port, const StopSignal& stop, Handler handler)
    : stop_(stop), handler_(std::move(handler)) {
    const Addresses addresses = resolve(host, port);
    int error = 0;
    for (const addrinfo* address = addresses.get(); address != nullptr && listener_ < 0;
         address = address->ai_next) {
        listener_ = listen_on(*address);
        // The first address is the one to complain about.
        if (listener_ < 0 && error == 0) error = errno;
    }
    if (listener_ < 0) {
        throw ListenError("cannot listen on " + host + " port " + std::to_string(port) + ": " +
                          std::strerror(error));
    }
}

Server::~Server() {
    for (Connection& connection : connections_) connection.thread.join();
    if (listener_ >= 0) close(listener_);
}

int Server::port() const {
    sockaddr_storage address = {};
    socklen_t size = sizeof address;
    getsockname(listener_, reinterpret_cast<sockaddr*>(&address), &size);
    const bool v6 = address.ss_family == AF_INET6;
    return ntohs(v6 ? reinterpret_cast<const sockaddr_in6&>(address).sin6_port
                    : reinterpret_cast<const sockaddr_in&>(address).sin_port);
}

bool Server::run() {
    while (!stop_.requested()) {
        // The timeout only bounds how long finished threads wait to be joined.
        const Wait wait = wait_for(listener_, POLLIN, stop_.descriptor(),
                                   Clock::now() + std::chrono::minutes(1));
        join_finished();
        if (wait == Wait::ready) accept_connection();
    }
    close(std::exchange(listener_, -1));
    const auto deadline = Clock::now() + kStopTime;
    while (!connections_.empty() && Clock::now() < deadline) {
        std::this_thread::sleep_for(milliseconds(5));
        join_finished();
    }
    return connections_.empty();
}

void Server::accept_connection() {
    const int descriptor = accept(listener_, nullptr, nullptr);
    if (descriptor < 0) {
        // Out of descriptors or memory: wait for connections to end rather than spin.
        if (!would_block(errno)) std::this_thread::sleep_for(milliseconds(20));
        return;
    }
    set_flags(descriptor);
    start_connection(descriptor);
}

void Server::start_connection(int descriptor) {
    Socket socket(descriptor);
    const std::string busy = serialize(error_response(503, "too many connections"));
    if (connections_.size() >= kMaxConnections) {
        // Not waiting for the client: this thread has to accept the next one.
        send(descriptor, busy.data(), busy.size(), MSG_NOSIGNAL);
        return;
    }
    Connection& connection = connections_.emplace_back();
    try {
        connection.thread = std::thread([this, descriptor, &connection] {
            {
                Socket owned(descriptor);
                serve_connection(descriptor, stop_.descriptor(), handler_);
            }
            connection.done = true;
        });
        socket.release();
    } catch (const std::system_error&) {
        connections_.pop_back();
        send(descriptor, busy.data(), busy.size(), MSG_NOSIGNAL);
    }
}

void Server::join_finished() {
    connections_.remove_if([](Connection& connection) {
        if (!connection.done) return false;
        connection.thread.join();
        return true;
    });
}

}  // namespace hello::http
