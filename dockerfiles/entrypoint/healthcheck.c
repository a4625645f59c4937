// The health check of engine images: whether the engine's server answers a GET of its health page.
//
//     healthcheck PORT PATH
//
// Options, variables and files of the engine can move its server from the image's PORT (--port,
// LLAMA_ARG_PORT, --host x.sock, --uds), each engine in its own way.  So the kernel is asked: the
// server is on PORT if a process of this container listens there, else on the sockets of the first
// process that listens at all.
//
// Exit status 0: it answers 200, or 401 or 403 for want of a key; or it cannot be judged, for it
// speaks TLS and takes connections: Docker has no word for "unknown".  1: all else.
#include <arpa/inet.h>
#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <netinet/in.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#ifndef ROOT
#define ROOT ""
#endif

enum { kMostListeners = 256, kSeconds = 4 };

struct listener {
    unsigned long inode;
    int pid;   // of the first process that has it; 0: of no process that can be seen
    int port;  // 0: a socket of the file system
    char name[128];
    union {
        struct sockaddr any;
        struct sockaddr_in v4;
        struct sockaddr_in6 v6;
        struct sockaddr_un local;
    } address;
    socklen_t length;
};

static struct listener listeners[kMostListeners];
static int count;
static bool seen, hidden;  // files of a process, and of another one that another user runs

static struct listener *add(unsigned long inode) {
    if (count == kMostListeners) return NULL;
    listeners[count] = (struct listener){.inode = inode};
    return &listeners[count++];
}

static void set_v4(struct listener *it, in_addr_t host, int port) {
    it->port = port;
    it->address.v4 = (struct sockaddr_in){.sin_family = AF_INET, .sin_port = htons((in_port_t)port)};
    it->address.v4.sin_addr.s_addr = host == INADDR_ANY ? htonl(INADDR_LOOPBACK) : host;
    it->length = sizeof it->address.v4;
    char text[INET6_ADDRSTRLEN];
    inet_ntop(AF_INET, &it->address.v4.sin_addr, text, sizeof text);
    snprintf(it->name, sizeof it->name, "%s:%d", text, port);
}

static void set_v6(struct listener *it, const struct in6_addr *host, int port) {
    it->port = port;
    it->address.v6 =
        (struct sockaddr_in6){.sin6_family = AF_INET6, .sin6_port = htons((in_port_t)port)};
    it->address.v6.sin6_addr = IN6_IS_ADDR_UNSPECIFIED(host) ? in6addr_loopback : *host;
    it->length = sizeof it->address.v6;
    char text[INET6_ADDRSTRLEN];
    inet_ntop(AF_INET6, &it->address.v6.sin6_addr, text, sizeof text);
    snprintf(it->name, sizeof it->name, "[%s]:%d", text, port);
}

// proc_pid_net(5), "/proc/net/tcp": addresses are numbers as they are in memory, 0A is LISTEN.
static bool read_tcp(const char *path) {
    FILE *file = fopen(path, "re");
    char line[512], host[64];
    while (file != NULL && fgets(line, sizeof line, file) != NULL) {
        unsigned port = 0, state = 0;
        unsigned long inode = 0;
        if (sscanf(line, "%*d: %63[0-9A-F]:%x %*[0-9A-F]:%*x %x %*s %*s %*s %*s %*s %lu", host, &port,
                   &state, &inode) != 4 ||
            state != 0x0a)
            continue;
        struct listener *it = add(inode);
        if (it == NULL) break;
        struct in6_addr address;
        if (sscanf(host, "%8x%8x%8x%8x", &address.s6_addr32[0], &address.s6_addr32[1],
                   &address.s6_addr32[2], &address.s6_addr32[3]) == 4)
            set_v6(it, &address, (int)port);
        else
            set_v4(it, address.s6_addr32[0], (int)port);
    }
    if (file != NULL) fclose(file);
    return file != NULL;
}

// proc_pid_net(5), "/proc/net/unix": the flag 10000 is a socket that listens.
static void read_unix(void) {
    FILE *file = fopen(ROOT "/proc/net/unix", "re");
    char line[512], path[128];
    while (file != NULL && fgets(line, sizeof line, file) != NULL) {
        unsigned flags = 0, type = 0;
        unsigned long inode = 0;
        if (sscanf(line, "%*s %*x %*x %x %x %*x %lu %127[^\n]", &flags, &type, &inode, path) != 4 ||
            (flags & 0x10000) == 0 || type != SOCK_STREAM)
            continue;
        struct listener *it = add(inode);
        if (it == NULL) break;
        snprintf(it->name, sizeof it->name, "%s", path);
    }
    if (file != NULL) fclose(file);
}

static void find_owners_of(int pid) {
    char folder[PATH_MAX], link[64];
    snprintf(folder, sizeof folder, ROOT "/proc/%d/fd", pid);
    DIR *entries = opendir(folder);
    seen |= entries != NULL && pid != getpid();
    hidden |= entries == NULL && errno == EACCES;
    for (struct dirent *each; entries != NULL && (each = readdir(entries)) != NULL;) {
        const ssize_t length = readlinkat(dirfd(entries), each->d_name, link, sizeof link - 1);
        unsigned long inode = 0;
        hidden |= length < 0 && errno == EACCES;
        if (length < 0) continue;
        link[length] = '\0';
        if (sscanf(link, "socket:[%lu]", &inode) != 1) continue;
        for (int i = 0; i < count; ++i)
            if (listeners[i].inode == inode && (listeners[i].pid == 0 || pid < listeners[i].pid))
                listeners[i].pid = pid;
    }
    if (entries != NULL) closedir(entries);
}

static void find_owners(void) {
    DIR *entries = opendir(ROOT "/proc");
    for (struct dirent *each; entries != NULL && (each = readdir(entries)) != NULL;)
        if (isdigit((unsigned char)each->d_name[0])) find_owners_of(atoi(each->d_name));
    if (entries != NULL) closedir(entries);
}

// The address of a socket's file: as its process sees it.
static void set_local(struct listener *it) {
    struct sockaddr_un *local = &it->address.local;
    local->sun_family = AF_UNIX;
    it->length = sizeof *local;
    if (it->name[0] == '@') {
        snprintf(local->sun_path + 1, sizeof local->sun_path - 1, "%.106s", it->name + 1);
        it->length = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + strlen(it->name));
    } else if (it->name[0] == '/') {
        snprintf(local->sun_path, sizeof local->sun_path, "%.107s", it->name);
    } else {
        snprintf(local->sun_path, sizeof local->sun_path, ROOT "/proc/%d/cwd/%.64s", it->pid,
                 it->name);
    }
}

// A file of /proc whose texts end with '\0'; false: it cannot be read.
static bool read_texts(int pid, const char *name, char *text, size_t size) {
    char path[PATH_MAX];
    snprintf(path, sizeof path, ROOT "/proc/%d/%s", pid, name);
    FILE *file = fopen(path, "re");
    memset(text, 0, size);
    if (file == NULL) return false;
    const bool found = fread(text, 1, size - 2, file) > 0;
    fclose(file);
    return found;
}

// The options of a process that change how its page is asked for.
struct manner {
    char prefix[256];
    bool tls;
};

static struct manner manner_of(int pid) {
    static char text[1 << 17];
    struct manner found = {0};
    if (read_texts(pid, "environ", text, sizeof text))
        for (const char *each = text; *each != '\0'; each += strlen(each) + 1) {
            sscanf(each, "LLAMA_ARG_API_PREFIX=%255s", found.prefix);
            found.tls |= strncmp(each, "LLAMA_ARG_SSL_CERT_FILE=", 24) == 0;
        }
    if (read_texts(pid, "cmdline", text, sizeof text))
        for (const char *each = text; *each != '\0'; each += strlen(each) + 1) {
            if (strcmp(each, "--api-prefix") == 0)
                snprintf(found.prefix, sizeof found.prefix, "%s", each + strlen(each) + 1);
            if (strncmp(each, "--api-prefix=", 13) == 0)
                snprintf(found.prefix, sizeof found.prefix, "%s", each + 13);
            found.tls |= strncmp(each, "--ssl", 5) == 0;
        }
    return found;
}

// The HTTP status of a page; 0: no answer of HTTP, -1: no connection.
static int ask(const struct listener *it, const char *prefix, const char *page) {
    const int server = socket(it->address.any.sa_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    const struct timeval patience = {.tv_sec = kSeconds};
    setsockopt(server, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    setsockopt(server, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof patience);
    if (connect(server, &it->address.any, it->length) != 0) {
        printf("%s: %s\n", it->name, strerror(errno));
        close(server);
        return -1;
    }
    char text[1024];
    const int length = snprintf(text, sizeof text, "GET %s/%s HTTP/1.0\r\nHost: localhost\r\n\r\n",
                                prefix, page);
    size_t end = 0;
    int status = 0;
    if (send(server, text, (size_t)length, MSG_NOSIGNAL) == length) {
        ssize_t got = 0;
        // Other servers greet first, and then wait: ZeroMQ.
        while (end < 12 && (end == 0 || text[0] == 'H') &&
               (got = recv(server, text + end, sizeof text - 1 - end, 0)) > 0)
            end += (size_t)got;
    }
    text[end] = '\0';
    close(server);
    sscanf(text, "HTTP/%*s %d", &status);
    if (status != 0)
        printf("%s: %s/%s answers %d\n", it->name, prefix, page, status);
    else
        printf("%s: no answer of HTTP\n", it->name);
    return status;
}

static bool healthy(struct listener *it, const char *page) {
    struct manner manner = {0};
    if (it->pid != 0) manner = manner_of(it->pid);
    if (it->port == 0) set_local(it);
    int status = ask(it, manner.prefix, page);
    // "::" takes IPv4, too; a container without IPv6 has no ::1.
    if (status < 0 && it->address.any.sa_family == AF_INET6) {
        set_v4(it, INADDR_ANY, it->port);
        status = ask(it, manner.prefix, page);
    }
    if (status == 0 && manner.tls) printf("%s: it speaks TLS: not known whether it works\n", it->name);
    return status == 200 || status == 401 || status == 403 || (status == 0 && manner.tls);
}

int main(int arguments, char **words) {
    if (arguments != 3) {
        fputs("usage: healthcheck PORT PATH\n", stderr);
        return 1;
    }
    const int port = atoi(words[1]);
    const bool listed = read_tcp(ROOT "/proc/net/tcp");
    read_tcp(ROOT "/proc/net/tcp6");
    read_unix();
    find_owners();
    int first = 0;
    bool here = false, tcp = false;
    for (int i = 0; i < count; ++i) {
        const int pid = listeners[i].pid;
        here |= pid != 0 && listeners[i].port == port;
        if (pid != 0 && (first == 0 || pid < first)) first = pid;
    }
    for (int i = 0; i < count; ++i) tcp |= listeners[i].pid == first && listeners[i].port != 0;
    if (first == 0 && listed && seen && !hidden) {
        puts("no process of this container listens");
        return 1;
    }
    if (first == 0) {
        struct listener server = {0};
        set_v4(&server, INADDR_ANY, port);
        return healthy(&server, words[2]) ? 0 : 1;
    }
    for (int i = 0; i < count; ++i) {
        struct listener *it = &listeners[i];
        const bool asked = here ? it->pid != 0 && it->port == port
                                : it->pid == first && (it->port != 0) == tcp;
        if (asked && healthy(it, words[2])) return 0;
    }
    return 1;
}
