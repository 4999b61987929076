// Package redistest starts private redis-servers for tests.
package redistest

import (
	"context"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/tallygate/tallygate/internal/proctest"
)

const remedy = "install it (Debian: apt-get install redis-server; macOS: brew install redis), or run make test, which does"

// Server is a redis-server that belongs to one test. It listens on loopback and
// persists nothing unless told otherwise.
type Server struct {
	Addr string // host:port
	t    testing.TB
	args []string
	proc *proctest.Process
}

// Start starts a server with further arguments in redis-server's own form, for
// example "--notify-keyspace-events", "E$". It is ready when Start returns.
func Start(t testing.TB, args ...string) *Server {
	t.Helper()
	s := &Server{Addr: proctest.FreeAddr(t), t: t, args: args}
	s.Restart()
	return s
}

// Restart kills the server if it runs (SIGKILL), and starts it again at the same
// address with the same arguments: empty, unless the arguments turn persistence on.
func (s *Server) Restart() {
	s.t.Helper()
	if s.proc != nil {
		s.proc.Kill()
	}
	host, port, _ := strings.Cut(s.Addr, ":")
	args := append([]string{
		"--bind", host, "--port", port, "--save", "", "--appendonly", "no",
		"--dir", s.t.TempDir(), "--loglevel", "notice",
	}, s.args...)
	s.proc = proctest.Start(s.t, exec.Command(proctest.Require(s.t, remedy, "redis-server", "valkey-server"), args...))
	client := redis.NewClient(&redis.Options{Addr: s.Addr, MaxRetries: -1})
	defer client.Close()
	err := s.proc.Until(10*time.Second, func() error {
		err := client.Ping(context.Background()).Err()
		if err != nil && (strings.HasPrefix(err.Error(), "NOAUTH") || strings.HasPrefix(err.Error(), "NOPERM")) {
			return nil // it answers; the test wants it locked
		}
		return err
	})
	if err != nil {
		s.t.Fatal(err)
	}
}

// Kill ends the server as a crash would (SIGKILL).
func (s *Server) Kill() { s.proc.Kill() }

// Pause suspends the server (SIGSTOP): connections stay open and get no answer.
func (s *Server) Pause() { s.proc.Signal(syscall.SIGSTOP) }

// Resume ends a Pause.
func (s *Server) Resume() { s.proc.Signal(syscall.SIGCONT) }

// URL returns the address as redis://host:port/0.
func (s *Server) URL() string { return "redis://" + s.Addr + "/0" }

// Client returns a client of the server that is closed when the test ends.
func (s *Server) Client() *redis.Client {
	client := redis.NewClient(&redis.Options{Addr: s.Addr})
	s.t.Cleanup(func() { _ = client.Close() })
	return client
}
