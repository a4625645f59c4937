# CMake toolchain file: compiles for another architecture than the machine's. The devel stage has it
# under the name of the target's GNU triplet, x86_64-linux-gnu.cmake, which it reads here.
# https://cmake.org/cmake/help/latest/manual/cmake-toolchains.7.html
get_filename_component(triplet "${CMAKE_CURRENT_LIST_FILE}" NAME_WE)
string(REGEX MATCH "^[^-]+" CMAKE_SYSTEM_PROCESSOR "${triplet}")
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_C_COMPILER ${triplet}-gcc)
set(CMAKE_CXX_COMPILER ${triplet}-g++)
set(CMAKE_CUDA_HOST_COMPILER ${triplet}-g++)

# Programs are the machine's. Headers and libraries are the target's: Debian has those of its
# compiler in /usr/TRIPLET and those of packages in /usr/lib/TRIPLET, in the same root as the
# machine's own, which must not be found.
set(CMAKE_LIBRARY_ARCHITECTURE ${triplet})
set(CMAKE_FIND_ROOT_PATH /usr/${triplet})
set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)
set(CMAKE_FIND_ROOT_PATH_MODE_LIBRARY BOTH)
set(CMAKE_FIND_ROOT_PATH_MODE_INCLUDE BOTH)
set(CMAKE_FIND_ROOT_PATH_MODE_PACKAGE BOTH)
set(own ${CMAKE_HOST_SYSTEM_PROCESSOR}-linux-gnu)
set(CMAKE_IGNORE_PATH /usr/lib/${own} /lib/${own} /usr/include/${own})
set(ENV{PKG_CONFIG_LIBDIR} /usr/lib/${triplet}/pkgconfig:/usr/share/pkgconfig)
