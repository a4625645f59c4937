#pragma once

#include <stddef.h>

size_t limit_of(size_t total);
