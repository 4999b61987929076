package load_test

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tallygate/tallygate/internal/load"
	"github.com/tallygate/tallygate/internal/proctest"
	"github.com/tallygate/tallygate/internal/redistest"
)

func command(t *testing.T, env map[string]string, args ...string) (stdout, stderr string, err error) {
	t.Helper()
	cmd := load.Command(func(name string) string { return env[name] })
	var out, errs bytes.Buffer
	cmd.SetArgs(args)
	cmd.SetOut(&out)
	cmd.SetErr(&errs)
	err = cmd.ExecuteContext(t.Context())
	return out.String(), errs.String(), err
}

// The flags of the classic demo's generator, with a user and a password that it
// accepted and never used.
func TestClassicFlagsAllWork(t *testing.T) {
	const password = "s3cret-of-the-test"
	server := redistest.Start(t, "--requirepass", password, "--user", "loader", "on", ">"+password, "~*", "+@all")
	host, port, _ := strings.Cut(server.Addr, ":")
	report := filepath.Join(t.TempDir(), "run.json")
	args := []string{
		"--host", host, "--port", port, "--user", "loader", "--concurrency", "3", "--iterations", "10",
		"--threshold", "5", "--tokens", "1", "--report", report,
	}
	out, errs, err := command(t, map[string]string{load.PasswordEnv: password}, args...)
	if err != nil {
		t.Fatal(err, errs)
	}
	if strings.Contains(out+errs, password) {
		t.Errorf("the password is printed:\n%s%s", out, errs)
	}
	b, err := os.ReadFile(report)
	if err != nil {
		t.Fatal(err)
	}
	var r load.Report
	if err := json.Unmarshal(b, &r); err != nil {
		t.Fatal(err)
	}
	if n := r.Requests.Admitted + r.Requests.Rejected; n != 30 || r.Requests.Admitted < 5 || r.Requests.Rejected == 0 {
		t.Errorf("requests %+v, want 30 of which some are rejected", r.Requests)
	}
	if !strings.Contains(out, "admitted") || !strings.Contains(out, "p99") {
		t.Errorf("summary:\n%s", out)
	}
	if _, _, err := command(t, nil, append(args, "--password", "wrong")...); err == nil || strings.Contains(err.Error(), "wrong") && strings.Contains(err.Error(), password) {
		t.Errorf("a wrong password gives %v", err)
	}
}

func TestCommandRefuses(t *testing.T) {
	for _, c := range []struct{ args, want string }{
		{"--target http://example.com", "--allow-remote"},
		{"--target http://10.0.0.1:8080", "--allow-remote"},
		{"--host redis.example.com", "--allow-remote"},
		{"--target http://127.0.0.1:1 --threshold 3", "one or the other"},
		{"--classic --resources search", "neither resources nor policies"},
		{"--target 127.0.0.1:8080", "http://127.0.0.1:8080"},
		{"--costs x", "no number of units"},
		{"--costs 1=0", "weight"},
		{"--zipf 1", "above 1"},
		{"--tokens 0", "--tokens"},
		{"--concurrency 0", "--concurrency"},
		{"extra", "extra"},
	} {
		if _, _, err := command(t, nil, strings.Fields(c.args)...); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("load %s: %v, want an error with %q", c.args, err, c.want)
		}
	}
}

func TestNoAnswerAtAllIsAnError(t *testing.T) {
	_, _, err := command(t, nil, "--target", "http://"+proctest.FreeAddr(t), "--iterations", "1", "--concurrency", "2")
	if err == nil || !strings.Contains(err.Error(), "refused") {
		t.Errorf("load of a dead address gives %v", err)
	}
}

func TestReportToStandardOutputIsOnlyJSON(t *testing.T) {
	server := redistest.Start(t)
	host, port, _ := strings.Cut(server.Addr, ":")
	out, _, err := command(t, nil, "--host", host, "--port", port, "--iterations", "1", "--report", "-")
	if err != nil {
		t.Fatal(err)
	}
	var r load.Report
	if err := json.Unmarshal([]byte(out), &r); err != nil {
		t.Errorf("%v in:\n%s", err, out)
	}
}
