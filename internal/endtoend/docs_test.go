package endtoend

import (
	"bufio"
	"context"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/tallygate/tallygate/internal/pgtest"
	"github.com/tallygate/tallygate/internal/proctest"
	"github.com/tallygate/tallygate/internal/redistest"
)

// The commands that the documentation shows are run, each document from top to
// bottom as a reader would. A block that cannot be run says why in a comment
// before it: <!-- not run: reason -->.
func TestCommandsInTheDocumentationWork(t *testing.T) {
	for _, name := range []string{"README.md", "CONTRIBUTING.md", "docs/getting-started.md", "docs/migrating-from-incr.md"} {
		t.Run(name, func(t *testing.T) {
			commands, err := documented(filepath.Join("../..", name))
			if err != nil {
				t.Fatal(err)
			}
			newReader(t).run(commands)
		})
	}
}

// documented returns the commands of a document's sh blocks that are to be run,
// one per line; a backslash at the end of a line continues it.
func documented(path string) ([]string, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	var commands []string
	inBlock, skip, continued := false, false, false
	lines := bufio.NewScanner(file)
	for lines.Scan() {
		line := strings.TrimSpace(lines.Text())
		switch {
		case strings.HasPrefix(line, "<!-- not run:"):
			skip = true
		case line == "```sh":
			inBlock = true
		case line == "```":
			if inBlock {
				skip = false
			}
			inBlock = false
		case inBlock && !skip && line != "":
			command, more := strings.CutSuffix(line, `\`)
			if continued {
				commands[len(commands)-1] += " " + command
			} else {
				commands = append(commands, command)
			}
			continued = more
		}
	}
	return commands, lines.Err()
}

// reader follows a document in a directory of its own. Servers and ports that the
// document takes for granted are replaced by private ones.
type reader struct {
	t               *testing.T
	dir             string
	enforcer, query string // addresses of a running dev, host:port
	substitute      *strings.Replacer
	left            *proctest.Process // a dev that was left running, or nil
	redis           *redistest.Server // nil until a command names one
}

func newReader(t *testing.T) *reader {
	r := &reader{t: t, dir: t.TempDir(), enforcer: proctest.FreeAddr(t), query: proctest.FreeAddr(t)}
	example, err := os.ReadFile("../../tallygate.example.yaml")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(r.dir, "tallygate.example.yaml"), example, 0o600); err != nil {
		t.Fatal(err)
	}
	r.substitute = strings.NewReplacer(
		"go run ./cmd/tallygate dev", fmt.Sprintf("%s dev --listen %s --query-listen %s --debug-listen '' --data data", binary(t, "tallygate"), r.enforcer, r.query),
		"go run ./cmd/tallygate load --classic", binary(t, "tallygate")+" load --classic",
		"go run ./cmd/tallygate load", fmt.Sprintf("%s load --target http://%s", binary(t, "tallygate"), r.enforcer),
		"go run ./cmd/tallygate", binary(t, "tallygate"),
		"go run ./cmd/indexer top", fmt.Sprintf("%s top --server http://%s", binary(t, "indexer"), r.query),
		"go run ./cmd/indexer token", fmt.Sprintf("%s token --server http://%s", binary(t, "indexer"), r.query),
		"go run ./cmd/indexer usage", fmt.Sprintf("%s usage --server http://%s", binary(t, "indexer"), r.query),
		"127.0.0.1:8080", r.enforcer,
		"127.0.0.1:8090", r.query,
	)
	return r
}

func (r *reader) run(commands []string) {
	if len(commands) == 0 {
		r.t.Skip("it shows no command that is to be run")
	}
	for _, command := range commands {
		adapted := r.servers(r.substitute.Replace(command))
		if strings.Contains(command, "tallygate dev") && !strings.Contains(command, "--for") {
			r.leave(command, adapted)
			continue
		}
		began := time.Now()
		ctx, cancel := context.WithTimeout(r.t.Context(), time.Minute)
		out, err := r.command(ctx, adapted).CombinedOutput()
		cancel()
		r.t.Logf("$ %s  # %s", command, time.Since(began).Round(10*time.Millisecond))
		if err != nil || len(out) == 0 {
			r.t.Errorf("$ %s\n(run as: %s)\n%s\n%v", command, adapted, out, err)
		}
	}
	if r.left != nil {
		r.left.Signal(syscall.SIGINT)
		if err := r.left.Wait(20 * time.Second); err != nil {
			r.t.Errorf("after Ctrl-C: %v\n%s", err, r.left.Output())
		}
	}
}

// servers puts private servers in the place of those that a command names.
func (r *reader) servers(command string) string {
	const url, postgres = "redis://127.0.0.1:6379/0", "postgres://postgres@127.0.0.1:5432/tallygate"
	const cli, flags = "redis-cli", "--host 127.0.0.1 --port 6379"
	if r.redis == nil && (strings.Contains(command, url) || strings.Contains(command, cli)) {
		r.redis = redistest.Start(r.t)
	}
	if r.redis != nil {
		host, port, _ := strings.Cut(r.redis.Addr, ":")
		command = strings.NewReplacer(
			url, r.redis.URL(),
			cli, fmt.Sprintf("%s -h %s -p %s", cli, host, port),
			flags, fmt.Sprintf("--host %s --port %s", host, port),
		).Replace(command)
	}
	if strings.Contains(command, postgres) {
		command = strings.ReplaceAll(command, postgres, "'"+pgtest.Database(r.t)+"'")
	}
	return command
}

func (r *reader) command(ctx context.Context, line string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, "bash", "-euo", "pipefail", "-c", line)
	cmd.Dir = r.dir
	return cmd
}

// leave starts a command that the reader leaves running in another terminal.
func (r *reader) leave(command, adapted string) {
	r.left = proctest.Start(r.t, r.command(context.Background(), "exec "+adapted))
	err := r.left.Until(20*time.Second, func() error {
		for _, addr := range []string{r.enforcer, r.query} {
			resp, err := http.Get("http://" + addr + "/readyz")
			if err != nil {
				return err
			}
			resp.Body.Close()
			if resp.StatusCode != http.StatusOK {
				return fmt.Errorf("%s answers %s", addr, resp.Status)
			}
		}
		return nil
	})
	if err != nil {
		r.t.Fatalf("$ %s\n%v", command, err)
	}
}
