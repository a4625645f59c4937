# LLAMA_BUILD_NUMBER and LLAMA_BUILD_COMMIT: as passed, else of git, else 0 and "unknown".

set(number 0)
set(commit unknown)
find_package(Git QUIET)
if(Git_FOUND AND EXISTS ${CMAKE_SOURCE_DIR}/.git)
    function(ask_git result)
        execute_process(COMMAND ${GIT_EXECUTABLE} ${ARGN}
            WORKING_DIRECTORY ${CMAKE_SOURCE_DIR}
            OUTPUT_VARIABLE output OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET
            RESULT_VARIABLE status)
        if(status EQUAL 0)
            set(${result} ${output} PARENT_SCOPE)
        endif()
    endfunction()
    ask_git(number rev-list --count HEAD)
    ask_git(commit rev-parse --short HEAD)
endif()
# A cache entry does not replace what came with -D.
set(LLAMA_BUILD_NUMBER ${number} CACHE STRING "build number that --version prints")
set(LLAMA_BUILD_COMMIT ${commit} CACHE STRING "commit that --version prints")
