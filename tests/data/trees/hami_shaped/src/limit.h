#pragma once

#include <stddef.h>

#define DEVICES 16

typedef void * (*fp_dlsym)(void *, const char *);
extern fp_dlsym real_dlsym;

size_t limit_of(int device);
int real_driver(const char * name, void * argument);
void init_utilization_watcher();
int try_lock_unified_lock();
