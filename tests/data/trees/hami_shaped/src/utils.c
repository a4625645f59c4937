#include <stdio.h>
#include <string.h>
#include <dirent.h>
#include <ctype.h>
#include <fcntl.h>

#include "limit.h"

int try_lock_unified_lock() {
    int lock_fd = open("/tmp/vgpulock/lock", O_CREAT | O_RDWR, 0666);
    if (lock_fd == -1) {
        return -1;
    }
    return flock(lock_fd, LOCK_EX);
}
