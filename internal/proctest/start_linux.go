package proctest

import (
	"os/exec"
	"runtime"
	"sync"
	"syscall"
)

// The kernel sends the parent-death signal when the starting *thread* ends, so
// all children are started from one goroutine that keeps its thread for good.
var starter = sync.OnceValue(func() chan func() {
	calls := make(chan func())
	go func() {
		runtime.LockOSThread()
		for call := range calls {
			call()
		}
	}()
	return calls
})

func start(cmd *exec.Cmd) error {
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	cmd.SysProcAttr.Pdeathsig = syscall.SIGKILL
	result := make(chan error)
	starter() <- func() { result <- cmd.Start() }
	return <-result
}
