// Package e2e runs the built programs against real servers in containers, in the
// images that people run, and demands the same account as the tests of the main
// module do: what the load was told equals what the history holds, to the unit.
//
//	go test ./...                                                    (in this folder)
//	TALLYGATE_E2E_REDIS=redis:8.2 TALLYGATE_E2E_POSTGRES=postgres:16 go test ./...
//
// It is a module of its own, so that the container library's many modules weigh
// on nobody else. Without a container engine it skips, with one line.
package e2e

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/testcontainers/testcontainers-go"
	"github.com/testcontainers/testcontainers-go/wait"
)

// images of the servers; each can be replaced from the environment.
var images = struct{ redis, stack, valkey, postgres string }{
	redis:    cmp.Or(os.Getenv("TALLYGATE_E2E_REDIS"), "redis:8"),
	stack:    cmp.Or(os.Getenv("TALLYGATE_E2E_REDIS_STACK"), "redis/redis-stack-server:7.2.0-v18"),
	valkey:   cmp.Or(os.Getenv("TALLYGATE_E2E_VALKEY"), "valkey/valkey:8"),
	postgres: cmp.Or(os.Getenv("TALLYGATE_E2E_POSTGRES"), "postgres:17"),
}

// start runs a container until the test ends and returns the address of a port of it.
func start(t *testing.T, image, port, ready string, env map[string]string) string {
	t.Helper()
	ctx := t.Context()
	c, err := testcontainers.Run(
		ctx, image, testcontainers.WithExposedPorts(port), testcontainers.WithEnv(env),
		testcontainers.WithWaitStrategyAndDeadline(3*time.Minute, wait.ForAll(wait.ForLog(ready), wait.ForListeningPort(port))),
	)
	testcontainers.CleanupContainer(t, c)
	if err != nil {
		t.Fatalf("start %s: %v", image, err)
	}
	address, err := c.PortEndpoint(ctx, port, "")
	if err != nil {
		t.Fatal(err)
	}
	return address
}

// build builds the programs and returns their folder.
func build(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	command := exec.Command("go", "build", "-o", dir+string(filepath.Separator), "./cmd/...")
	command.Dir = ".."
	if out, err := command.CombinedOutput(); err != nil {
		t.Fatalf("build the programs: %v\n%s", err, out)
	}
	return dir
}

// program is one of ours, running.
type program struct {
	cmd    *exec.Cmd
	output bytes.Buffer
}

// run starts a program and returns once it is ready.
func run(t *testing.T, dir, name, address string, env map[string]string) *program {
	t.Helper()
	p := &program{cmd: exec.Command(filepath.Join(dir, name))}
	p.cmd.Dir = t.TempDir() // no tallygate.yaml is there
	p.cmd.Stdout, p.cmd.Stderr = &p.output, &p.output
	p.cmd.Env = os.Environ()
	for key, value := range env {
		p.cmd.Env = append(p.cmd.Env, key+"="+value)
	}
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- p.cmd.Wait() }()
	t.Cleanup(func() {
		_ = p.cmd.Process.Signal(os.Interrupt)
		select {
		case err := <-ended:
			if err != nil {
				t.Errorf("%s ended: %v\n%s", name, err, p.output.String())
			}
		case <-time.After(30 * time.Second):
			_ = p.cmd.Process.Kill()
			<-ended
			t.Errorf("%s did not stop\n%s", name, p.output.String())
		}
	})
	eventually(t, name+" is ready", func() error {
		r, err := http.Get("http://" + address + "/readyz")
		if err != nil {
			return err
		}
		defer r.Body.Close()
		if r.StatusCode != http.StatusOK {
			return fmt.Errorf("/readyz answers %s", r.Status)
		}
		return nil
	})
	return p
}

func eventually(t *testing.T, what string, is func() error) {
	t.Helper()
	var err error
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); time.Sleep(50 * time.Millisecond) {
		if err = is(); err == nil {
			return
		}
	}
	t.Fatalf("it did not come to be that %s: %v", what, err)
}

func freeAddress(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

// report is what these tests read of the load generator's account.
type report struct {
	Units  struct{ Admitted, Rejected, Unknown int64 }
	Tokens []struct {
		Token              string
		Admitted, Rejected int64
	}
}

func TestTheHistoryHoldsWhatTheLoadWasTold(t *testing.T) {
	testcontainers.SkipIfProviderIsNotHealthy(t)
	programs := build(t)
	for name, image := range map[string]string{"redis": images.redis, "redis-stack": images.stack, "valkey": images.valkey} {
		t.Run(name, func(t *testing.T) {
			redis := start(t, image, "6379/tcp", "Ready to accept connections", nil)
			postgres := start(t, images.postgres, "5432/tcp", "listening on IPv4", map[string]string{
				"POSTGRES_USER": "tallygate", "POSTGRES_PASSWORD": "tallygate", "POSTGRES_DB": "tallygate",
			})
			env := map[string]string{
				"TALLYGATE_REDIS_URL":   "redis://" + redis + "/0",
				"TALLYGATE_HISTORY_URL": "postgres://tallygate:tallygate@" + postgres + "/tallygate?sslmode=disable",
			}
			serve := func(name, listen, debug string) string {
				address := freeAddress(t)
				env[listen], env[debug] = address, freeAddress(t)
				run(t, programs, name, address, env)
				return address
			}
			query := serve("indexer", "TALLYGATE_INDEXER_LISTEN", "TALLYGATE_INDEXER_DEBUG_LISTEN")
			serve("tracker", "TALLYGATE_TRACKER_LISTEN", "TALLYGATE_TRACKER_DEBUG_LISTEN")
			decide := serve("enforcer", "TALLYGATE_ENFORCER_LISTEN", "TALLYGATE_ENFORCER_DEBUG_LISTEN")

			file := filepath.Join(t.TempDir(), "report.json")
			load := exec.Command(filepath.Join(programs, "tallygate"), "load", "--target", "http://"+decide,
				"--duration", "5s", "--rate", "2000", "--tokens", "50", "--zipf", "1.1", "--report", file)
			if out, err := load.CombinedOutput(); err != nil {
				t.Fatalf("load: %v\n%s", err, out)
			}
			content, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			var told report
			if err := json.Unmarshal(content, &told); err != nil {
				t.Fatal(err)
			}
			if told.Units.Admitted == 0 || told.Units.Rejected == 0 || told.Units.Unknown != 0 {
				t.Fatalf("the load was told %+v; some of each was expected, nothing unknown", told.Units)
			}
			for _, token := range told.Tokens {
				eventually(t, "the history agrees about "+token.Token, func() error {
					ops, rejected, err := account(query, token.Token)
					if err == nil && (ops != token.Admitted || rejected != token.Rejected) {
						err = fmt.Errorf("it holds %d and %d, the load was told %d and %d", ops, rejected, token.Admitted, token.Rejected)
					}
					return err
				})
			}
		})
	}
}

// account asks the indexer what it holds of a token.
func account(indexer, token string) (ops, rejected int64, err error) {
	r, err := http.Get("http://" + indexer + "/v1/tokens/" + url.PathEscape(token))
	if err != nil {
		return 0, 0, err
	}
	defer r.Body.Close()
	var held struct{ Ops, Rejected int64 }
	if r.StatusCode != http.StatusOK {
		return 0, 0, fmt.Errorf("the indexer answers %s", r.Status)
	}
	err = json.NewDecoder(r.Body).Decode(&held)
	return held.Ops, held.Rejected, err
}
