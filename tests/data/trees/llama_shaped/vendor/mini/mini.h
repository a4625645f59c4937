// A library that llama-shaped takes from another repository.
#pragma once

#define MINI_NAME "mini 1"
