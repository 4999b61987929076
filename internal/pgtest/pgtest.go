// Package pgtest runs private Postgres servers for tests.
//
// Most tests want a database of their own in the server that their test binary
// shares (Database, some 10 ms); one that kills its server starts its own (Start,
// some 500 ms). Servers listen on a Unix socket only, sync nothing to disk, and
// survive kill -9 as a real one does: what was committed is there after Restart.
package pgtest

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/tallygate/tallygate/internal/proctest"
)

const remedy = "install it (Debian: apt-get install postgresql; macOS: brew install postgresql@17), or run make test, which does"

// Main runs a package's tests and then stops the server that they shared. It is
// all that TestMain of a package that calls Database does:
//
//	func TestMain(m *testing.M) { os.Exit(pgtest.Main(m)) }
func Main(m *testing.M) int {
	code := m.Run()
	shared.tb.cleanup()
	return code
}

// shared is the server of this test binary, started by the first Database.
var shared struct {
	once   sync.Once
	tb     binary
	server *Server
	last   atomic.Int64 // number of the last database
}

// Database creates an empty database in the binary's server and returns its URL.
func Database(t testing.TB) string {
	t.Helper()
	requirePrograms(t)
	shared.once.Do(func() {
		shared.tb.TB = t
		shared.server = Start(&shared.tb)
	})
	if shared.server == nil {
		t.Fatal("the shared Postgres did not start; see the first test that needed it")
	}
	return shared.server.Database(t)
}

// Server is a Postgres that belongs to one test. Its superuser is "postgres",
// without a password.
type Server struct {
	t    testing.TB
	dir  string // holds the data directory and the socket
	bin  programs
	proc *proctest.Process
}

// Start starts a server. It is ready when Start returns, and is gone, with its
// data, when the test ends.
func Start(t testing.TB) *Server {
	t.Helper()
	s := &Server{t: t, bin: requirePrograms(t)}
	// Not t.TempDir: the path of a socket has at most 107 bytes, and the server's
	// user must be able to enter.
	dir, err := os.MkdirTemp("", "pgtest")
	if err != nil {
		t.Fatal(err)
	}
	s.dir = dir
	t.Cleanup(func() { removeAll(t, dir) })
	if err := s.bin.own(dir); err != nil {
		t.Fatal(err)
	}
	initdb := s.bin.command(s.bin.initdb, "--pgdata", s.data(), "--username", "postgres", "--auth", "trust",
		"--encoding", "UTF8", "--locale", "C", "--no-sync")
	if out, err := initdb.CombinedOutput(); err != nil {
		t.Fatalf("%v: %v\n%s", initdb.Args, err, out)
	}
	s.Restart()
	return s
}

func (s *Server) data() string { return filepath.Join(s.dir, "data") }

// Restart kills the server if it runs (SIGKILL) and starts it again on the same
// data; it is ready when Restart returns.
func (s *Server) Restart() {
	s.t.Helper()
	if s.proc != nil {
		s.proc.Kill()
	}
	deadline := time.Now().Add(20 * time.Second)
	for {
		s.proc = proctest.Start(s.t, s.bin.command(s.bin.postgres, "-D", s.data(), "-k", s.dir,
			"-c", "listen_addresses=", "-c", "fsync=off", "-c", "full_page_writes=off", "-c", "max_connections=50"))
		proc := s.proc
		s.t.Cleanup(func() {
			proc.Signal(syscall.SIGQUIT) // takes the backends along, as SIGKILL would not
			_ = proc.Wait(10 * time.Second)
		})
		err := proc.Until(time.Until(deadline), func() error {
			conn, err := pgx.Connect(context.Background(), s.URL("postgres"))
			if err != nil {
				return err
			}
			return conn.Close(context.Background())
		})
		if err == nil {
			return
		}
		// Backends of a killed server hold its shared memory until they notice.
		if !errors.Is(err, proctest.ErrEnded) || time.Now().After(deadline) {
			s.t.Fatal(err)
		}
	}
}

// Kill ends the server as a crash would (SIGKILL).
func (s *Server) Kill() { s.proc.Kill() }

// URL returns the URL of a database of the server.
func (s *Server) URL(database string) string {
	return "postgres://postgres@/" + url.PathEscape(database) + "?host=" + url.QueryEscape(s.dir)
}

// Database creates an empty database and returns its URL.
func (s *Server) Database(t testing.TB) string {
	t.Helper()
	name := fmt.Sprintf("test%d", shared.last.Add(1))
	ctx := context.Background()
	conn, err := pgx.Connect(ctx, s.URL("postgres"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(ctx)
	if _, err := conn.Exec(ctx, "CREATE DATABASE "+pgx.Identifier{name}.Sanitize()); err != nil {
		t.Fatal(err)
	}
	return s.URL(name)
}

// programs are the server's programs and the user that runs them.
type programs struct {
	initdb, postgres string
	user             *syscall.Credential // nil: ours
}

func requirePrograms(t testing.TB) programs {
	t.Helper()
	var p programs
	p.initdb = proctest.Require(t, remedy, candidates("initdb")...)
	p.postgres = proctest.Require(t, remedy, filepath.Join(filepath.Dir(p.initdb), "postgres"))
	if os.Geteuid() == 0 {
		cred, err := postgresUser()
		if err != nil {
			t.Fatalf("Postgres refuses to run as root: %v", err)
		}
		p.user = cred
	}
	return p
}

// candidates returns where the named program may be, best first: PATH, then the
// newest of Debian's versions, which are not on PATH.
func candidates(name string) []string {
	debian, _ := filepath.Glob("/usr/lib/postgresql/*/bin/" + name)
	slices.SortFunc(debian, func(a, b string) int {
		if len(a) != len(b) {
			return len(b) - len(a)
		}
		return strings.Compare(b, a)
	})
	return append([]string{name}, debian...)
}

func (p programs) command(path string, args ...string) *exec.Cmd {
	cmd := exec.Command(path, args...)
	cmd.Dir = "/" // the test's own may be closed to the server's user
	cmd.Env = append(os.Environ(), "LC_ALL=C", "TZ=UTC")
	if p.user != nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: p.user}
	}
	return cmd
}

func (p programs) own(dir string) error {
	if p.user == nil {
		return nil
	}
	return os.Chown(dir, int(p.user.Uid), int(p.user.Gid))
}

// removeAll removes dir; backends may still be writing their last files.
func removeAll(t testing.TB, dir string) {
	var err error
	for range 50 {
		if err = os.RemoveAll(dir); err == nil || errors.Is(err, fs.ErrNotExist) {
			return
		}
		time.Sleep(20 * time.Millisecond)
	}
	t.Errorf("remove the server's directory: %v", err)
}

// binary stands for the whole test binary where a testing.TB is wanted: cleanups
// wait for Main. Everything else is the first test's.
type binary struct {
	testing.TB
	mu       sync.Mutex
	cleanups []func()
}

func (b *binary) Cleanup(f func()) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.cleanups = append(b.cleanups, f)
}

// Failed hides the first test's fate: it may have ended long before the server.
func (b *binary) Failed() bool { return false }

// Errorf prints: after Main there is no test left to fail.
func (b *binary) Errorf(format string, args ...any) { fmt.Fprintf(os.Stderr, format+"\n", args...) }

func (b *binary) cleanup() {
	for _, f := range slices.Backward(b.cleanups) {
		f()
	}
}
