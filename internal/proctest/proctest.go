// Package proctest runs real server processes for tests: each ends with the test
// that started it, and can be killed, suspended and resumed in between.
package proctest

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"testing"
	"time"
)

// Require returns the path of the first of the named programs that is on this
// machine. Where there is none the test is skipped with remedy as the reason; in
// CI (CI=true) it fails instead.
func Require(t testing.TB, remedy string, names ...string) string {
	t.Helper()
	for _, name := range names {
		if path, err := exec.LookPath(name); err == nil {
			return path
		}
	}
	if os.Getenv("CI") == "true" {
		t.Fatalf("none of %v is installed: %s", names, remedy)
	}
	t.Skipf("none of %v is installed: %s", names, remedy)
	return ""
}

// FreeAddr returns a loopback address host:port on which nothing listened a
// moment ago.
func FreeAddr(t testing.TB) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

// Process is a running child. Its methods are safe for concurrent use.
type Process struct {
	cmd  *exec.Cmd
	out  *tail
	done chan struct{} // closed when it has ended
	err  error         // of Wait; set before done is closed
}

// Start starts cmd. It is killed when the test ends, and on Linux also when the
// test process dies. What it prints is shown if the test fails.
func Start(t testing.TB, cmd *exec.Cmd) *Process {
	t.Helper()
	p := &Process{cmd: cmd, out: &tail{}, done: make(chan struct{})}
	if cmd.Stdout == nil {
		cmd.Stdout = p.out
	}
	if cmd.Stderr == nil {
		cmd.Stderr = p.out
	}
	if err := start(cmd); err != nil {
		t.Fatalf("start %s: %v", cmd.Path, err)
	}
	go func() {
		p.err = cmd.Wait()
		close(p.done)
	}()
	t.Cleanup(func() {
		p.Kill()
		if t.Failed() {
			t.Logf("output of %v:\n%s", cmd.Args, p.Output())
		}
	})
	return p
}

// Kill ends the process at once (SIGKILL) and waits until it is gone.
func (p *Process) Kill() {
	p.Signal(syscall.SIGKILL)
	<-p.done
}

// Signal sends sig; a process that has ended ignores it. SIGSTOP suspends it,
// SIGCONT resumes it.
func (p *Process) Signal(sig syscall.Signal) { _ = p.cmd.Process.Signal(sig) }

// PID returns the process's number, for its files below /proc.
func (p *Process) PID() int { return p.cmd.Process.Pid }

// Done is closed when the process has ended.
func (p *Process) Done() <-chan struct{} { return p.done }

// Wait waits for the process to end by itself, at most limit, and returns its
// error as exec.Cmd.Wait does.
func (p *Process) Wait(limit time.Duration) error {
	select {
	case <-p.done:
		return p.err
	case <-time.After(limit):
		return fmt.Errorf("%s has not ended within %s", p.cmd.Path, limit)
	}
}

// Output returns the last 64 KiB that the process printed.
func (p *Process) Output() string { return p.out.String() }

// ErrEnded is returned by Until when the process ended before it was ready.
var ErrEnded = errors.New("process ended early")

// Until polls ready every few milliseconds until it returns nil, for at most
// limit, or until the process ends.
func (p *Process) Until(limit time.Duration, ready func() error) error {
	deadline := time.After(limit)
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for {
		err := ready()
		if err == nil {
			return nil
		}
		select {
		case <-p.done:
			return fmt.Errorf("%w: %v\n%s", ErrEnded, p.err, p.Output())
		case <-deadline:
			return fmt.Errorf("not ready after %s: %w\n%s", limit, err, p.Output())
		case <-tick.C:
		}
	}
}

// tail keeps the end of what is written to it.
type tail struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

const tailSize = 64 << 10

func (w *tail) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.buf.Write(p)
	if extra := w.buf.Len() - tailSize; extra > 0 {
		w.buf.Next(extra)
	}
	return len(p), nil
}

func (w *tail) String() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.buf.String()
}
