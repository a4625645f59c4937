# Included by the first project() of a tree with GGML_BACKEND_DL, whose ggml loads each backend when it
# starts, and computes on the CPU, without a word, where it cannot load CUDA's.  libggml.so shall need
# libggml-cuda.so as it does without GGML_BACKEND_DL: a program that cannot load it ends and names
# the library that is missing.
function(need_cuda)
    set(folder $<TARGET_FILE_DIR:ggml-cuda>)
    target_link_options(ggml
        PRIVATE -L${folder} LINKER:--push-state,--no-as-needed,-l:libggml-cuda.so,--pop-state
        INTERFACE LINKER:-rpath-link,${folder})
    add_dependencies(ggml ggml-cuda)
endfunction()

cmake_language(DEFER CALL need_cuda)
