// Leases a core, calls two functions on it, and gives it back. The same program is in c/, cpp/, rust/, python/ and fortran/; the
// functions are in functions/. With `sublet up` running:
//
//	go build -o hello .
//	./hello ./libhello.so
package main

// #cgo pkg-config: sublet
// #include <stdlib.h>
// #include <sublet.h>
import "C"

import (
	"fmt"
	"os"
	"runtime"
	"unsafe"
)

const outputBytes = 64

// An error of Sublet, with its stable number.
type failure struct {
	status  C.sublet_status
	message string
}

func (f *failure) Error() string {
	return fmt.Sprintf("%s: %s", C.GoString(C.sublet_status_name(f.status)), f.message)
}

// Executes an operation. The message of an error belongs to the thread, which the goroutine must keep until it has read it.
func try(operation func() C.sublet_status) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if status := operation(); status != C.SUBLET_OK {
		return &failure{status, C.GoString(C.sublet_error_message())}
	}
	return nil
}

// Allocates memory that the worker shares, so that nothing is copied. It is memory of C: the garbage collector ignores it.
func allocate(invoker *C.sublet_invoker) (unsafe.Pointer, error) {
	var data unsafe.Pointer
	err := try(func() C.sublet_status { return C.sublet_buffer_allocate(invoker, outputBytes, &data) })
	return data, err
}

// Submits a call, does not use the time that it takes for anything else, and waits for its end. Returns the size of the output.
func call(invoker *C.sublet_invoker, name string, input unsafe.Pointer, inputBytes int, output unsafe.Pointer) (int, error) {
	text := C.CString(name)
	defer C.free(unsafe.Pointer(text))
	var function C.sublet_function
	if err := try(func() C.sublet_status { return C.sublet_invoker_function(invoker, text, &function) }); err != nil {
		return 0, err
	}
	request := C.sublet_call{
		input:        input,
		input_bytes:  C.size_t(inputBytes),
		output:       output,
		output_bytes: outputBytes,
		function:     function,
	}
	var invocation C.sublet_invocation
	if err := try(func() C.sublet_status { return C.sublet_invoker_submit(invoker, &request, &invocation) }); err != nil {
		return 0, err
	}
	var done C.sublet_completion
	err := try(func() C.sublet_status { return C.sublet_invocation_wait(&invocation, &done) })
	return int(done.output_bytes), err
}

func run(path string) error {
	var invoker *C.sublet_invoker
	if err := try(func() C.sublet_status { return C.sublet_invoker_connect(nil, &invoker) }); err != nil {
		return err
	}
	defer C.sublet_invoker_free(invoker)

	// A lease of one core. It takes some milliseconds; calls take less than one thousandth of that.
	allocation := C.sublet_allocation_default(nil)
	allocation._package = C.CString(path)
	defer C.free(unsafe.Pointer(allocation._package))
	if err := try(func() C.sublet_status { return C.sublet_invoker_allocate(invoker, &allocation) }); err != nil {
		return err
	}

	var buffers [3]unsafe.Pointer
	for i := range buffers {
		data, err := allocate(invoker)
		if err != nil {
			return err
		}
		defer C.sublet_buffer_free(data)
		buffers[i] = data
	}
	input, greeting, loud := buffers[0], buffers[1], buffers[2]
	copy(unsafe.Slice((*byte)(input), outputBytes), "world")

	size, err := call(invoker, "greet", input, 5, greeting)
	if err != nil {
		return err
	}
	fmt.Println(C.GoStringN((*C.char)(greeting), C.int(size)))

	// The output of one call is the input of the next.
	size, err = call(invoker, "shout", greeting, size, loud)
	if err != nil {
		return err
	}
	fmt.Println(C.GoStringN((*C.char)(loud), C.int(size)))

	// A call that fails says why.
	_, err = call(invoker, "greet", input, 0, greeting)
	fmt.Println(err)

	var bill C.sublet_bill
	if err := try(func() C.sublet_status { return C.sublet_invoker_deallocate(invoker, &bill) }); err != nil {
		return err
	}
	fmt.Printf("%d calls, %d of them failed\n", bill.calls, bill.failed_calls)
	return nil
}

func main() {
	path := "./libhello.so"
	if len(os.Args) > 1 {
		path = os.Args[1]
	}
	if err := run(path); err != nil {
		fmt.Fprintln(os.Stderr, err)
		if known, ok := err.(*failure); ok {
			os.Exit(int(known.status))
		}
		os.Exit(1)
	}
}
