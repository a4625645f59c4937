// Streams, events, captures and graphs: functions of the runtime API and of the driver API that differ
// in their names alone.  cudart_streams.cpp and driver_streams.cpp define CALL and include this:
//
//     CALL(the runtime's name, the driver's, (parameters), whether they are valid, the call)
//
// Mode, Status and UpdateResult are the API's own types; the header of the other API is unknown.

CALL(cudaStreamCreateWithFlags, cuStreamCreate, (cudaStream_t* stream, unsigned flags),
     stream != nullptr, create_stream(flags, 0, stream))
CALL(cudaStreamCreateWithPriority, cuStreamCreateWithPriority,
     (cudaStream_t* stream, unsigned flags, int priority), stream != nullptr,
     create_stream(flags, priority, stream))
CALL(cudaStreamDestroy, cuStreamDestroy_v2, (cudaStream_t stream), true, destroy_stream(stream))
CALL(cudaStreamSynchronize, cuStreamSynchronize, (cudaStream_t stream), true,
     synchronize_stream(stream))
CALL(cudaStreamQuery, cuStreamQuery, (cudaStream_t stream), true, query_stream(stream))
CALL(cudaStreamWaitEvent, cuStreamWaitEvent, (cudaStream_t stream, cudaEvent_t event, unsigned), true,
     wait_event(stream, event))
CALL(cudaStreamGetFlags, cuStreamGetFlags, (cudaStream_t stream, unsigned* flags), flags != nullptr,
     stream_info(stream, nullptr, flags))
CALL(cudaStreamGetPriority, cuStreamGetPriority, (cudaStream_t stream, int* priority),
     priority != nullptr, stream_info(stream, nullptr, nullptr, priority))
CALL(cudaStreamGetDevice, cuStreamGetDevice, (cudaStream_t stream, int* device), device != nullptr,
     stream_info(stream, device))
// Called at once, in the caller's thread: all earlier work is done.
CALL(cudaLaunchHostFunc, cuLaunchHostFunc, (cudaStream_t stream, cudaHostFn_t function, void* data),
     function != nullptr, submit(stream, HostWork{function, data}))

CALL(cudaEventCreateWithFlags, cuEventCreate, (cudaEvent_t* event, unsigned flags), event != nullptr,
     create_event(flags, event))
CALL(cudaEventDestroy, cuEventDestroy_v2, (cudaEvent_t event), true, destroy_event(event))
CALL(cudaEventRecord, cuEventRecord, (cudaEvent_t event, cudaStream_t stream), true,
     record_event(event, stream))
CALL(cudaEventQuery, cuEventQuery, (cudaEvent_t event), true, query_event(event))
CALL(cudaEventSynchronize, cuEventSynchronize, (cudaEvent_t event), true, query_event(event))
CALL(cudaEventElapsedTime, cuEventElapsedTime,
     (float* milliseconds, cudaEvent_t start, cudaEvent_t end), milliseconds != nullptr,
     elapsed(start, end, milliseconds))

CALL(cudaStreamBeginCapture, cuStreamBeginCapture_v2, (cudaStream_t stream, Mode mode), true,
     begin_capture(stream, static_cast<cudaStreamCaptureMode>(mode), nullptr))
CALL(cudaStreamEndCapture, cuStreamEndCapture, (cudaStream_t stream, cudaGraph_t* graph),
     graph != nullptr, end_capture(stream, graph))
CALL(cudaStreamIsCapturing, cuStreamIsCapturing, (cudaStream_t stream, Status* status),
     status != nullptr, capture_status(stream, reinterpret_cast<cudaStreamCaptureStatus*>(status)))

CALL(cudaGraphInstantiateWithFlags, cuGraphInstantiateWithFlags,
     (cudaGraphExec_t* executable, cudaGraph_t graph, unsigned long long flags),
     executable != nullptr, instantiate(graph, flags, executable))
CALL(cudaGraphLaunch, cuGraphLaunch, (cudaGraphExec_t executable, cudaStream_t stream), true,
     launch_graph(executable, stream))
CALL(cudaGraphExecUpdate, cuGraphExecUpdate_v2,
     (cudaGraphExec_t executable, cudaGraph_t graph, UpdateResult* found), true,
     update(executable, graph, reinterpret_cast<cudaGraphExecUpdateResultInfo*>(found)))
CALL(cudaGraphExecDestroy, cuGraphExecDestroy, (cudaGraphExec_t executable), true,
     destroy_executable(executable))
CALL(cudaGraphDestroy, cuGraphDestroy, (cudaGraph_t graph), true, destroy_graph(graph))
