package main

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/tallygate/tallygate/internal/credential"
	"github.com/tallygate/tallygate/internal/proctest"
	"github.com/tallygate/tallygate/internal/redistest"
)

// output is a buffer that the program writes and the test reads.
type output struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.Write(p)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.String()
}

// instance is a running enforcer.
type instance struct {
	url    string
	config string // its file
	stop   func() error
	stderr *output
}

// start runs the enforcer with a configuration of policies and an environment.
func start(t *testing.T, policies string, env map[string]string) *instance {
	t.Helper()
	path := filepath.Join(t.TempDir(), "tallygate.yaml")
	if err := os.WriteFile(path, []byte(policies), 0o600); err != nil {
		t.Fatal(err)
	}
	address := proctest.FreeAddr(t)
	all := map[string]string{"TALLYGATE_ENFORCER_LISTEN": address, "TALLYGATE_ENFORCER_DEBUG_LISTEN": "127.0.0.1:0"}
	for k, v := range env {
		all[k] = v
	}
	ctx, cancel := context.WithCancel(context.Background())
	e := &instance{url: "http://" + address, config: path, stderr: &output{}}
	ended := make(chan error, 1)
	go func() {
		ended <- run(ctx, []string{"--config", path}, func(name string) string { return all[name] }, io.Discard, e.stderr)
	}()
	stopped := false
	e.stop = func() error {
		if stopped {
			return nil
		}
		stopped = true
		cancel()
		return <-ended
	}
	t.Cleanup(func() { _ = e.stop() })
	eventually(t, func() bool { r, err := http.Get(e.url + "/healthz"); return err == nil && r.Body.Close() == nil })
	return e
}

func eventually(t *testing.T, is func() bool) {
	t.Helper()
	for deadline := time.Now().Add(10 * time.Second); !is(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("it did not come to be")
		}
	}
}

func (e *instance) decide(t *testing.T, body string) (int, map[string]any) {
	t.Helper()
	r, err := http.Post(e.url+"/v1/decide", "application/json", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	var answer map[string]any
	if err := json.NewDecoder(r.Body).Decode(&answer); err != nil {
		t.Fatal(err)
	}
	return r.StatusCode, answer
}

func (e *instance) ready() bool {
	r, err := http.Get(e.url + "/readyz")
	return err == nil && r.Body.Close() == nil && r.StatusCode == 200
}

const twoPerHour = "policies: {default: {limits: [{name: hour, quota: 2, window: 1h}]}}\n"

func TestTwoEnforcersShareTheCountersOfOneRedis(t *testing.T) {
	env := map[string]string{"TALLYGATE_REDIS_URL": redistest.Start(t).URL()}
	a, b := start(t, twoPerHour, env), start(t, twoPerHour, env)
	for i, e := range []*instance{a, b} {
		if status, answer := e.decide(t, `{"token":"T"}`); status != 200 {
			t.Fatalf("request %d: %d %v", i, status, answer)
		}
	}
	for _, e := range []*instance{a, b} {
		if status, answer := e.decide(t, `{"token":"T"}`); status != 429 {
			t.Errorf("beyond the quota: %d %v", status, answer)
		}
	}
	if err := a.stop(); err != nil {
		t.Errorf("stop: %v", err)
	}
}

func TestTheEnforcerStartsWithoutRedisAndBecomesReadyWhenItComes(t *testing.T) {
	server := redistest.Start(t)
	server.Kill()
	e := start(t, twoPerHour, map[string]string{"TALLYGATE_REDIS_URL": server.URL(), "TALLYGATE_REDIS_DIAL_TIMEOUT": "100ms"})
	if e.ready() {
		t.Error("ready without Redis")
	}
	if status, answer := e.decide(t, `{"token":"T"}`); status != 503 {
		t.Errorf("without Redis: %d %v", status, answer)
	}
	if !strings.Contains(e.stderr.String(), "set redis.url") {
		t.Errorf("no clear word about it:\n%s", e.stderr)
	}
	server.Restart()
	eventually(t, e.ready)
	eventually(t, func() bool { status, _ := e.decide(t, `{"token":"T"}`); return status == 200 })
}

func TestChangedPoliciesTakeEffectWithoutARestartAndBrokenOnesDoNot(t *testing.T) {
	e := start(t, twoPerHour, map[string]string{"TALLYGATE_REDIS_URL": redistest.Start(t).URL()})
	change := func(content string) {
		t.Helper()
		if err := os.WriteFile(e.config, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := syscall.Kill(os.Getpid(), syscall.SIGHUP); err != nil {
			t.Fatal(err)
		}
	}
	quota := func() float64 {
		_, answer := e.decide(t, `{"token":"T","cost":0}`)
		return answer["limits"].([]any)[0].(map[string]any)["quota"].(float64)
	}
	change(strings.Replace(twoPerHour, "quota: 2", "quota: 5", 1))
	eventually(t, func() bool { return quota() == 5 })
	change(strings.Replace(twoPerHour, "quota: 2", "quota: -1, wdw: 5", 1))
	eventually(t, func() bool { return strings.Contains(e.stderr.String(), "refused") })
	for _, problem := range []string{"unknown key", "quota -1 must be 1 to"} {
		if !strings.Contains(e.stderr.String(), problem) {
			t.Errorf("no %q in\n%s", problem, e.stderr)
		}
	}
	if got := quota(); got != 5 {
		t.Errorf("after the refused file the quota is %v", got)
	}
}

func TestWhatAnAdministratorSetsIsInForceOnEveryEnforcerWithinASecond(t *testing.T) {
	token, digest := credential.Generate()
	address := proctest.FreeAddr(t)
	redisURL := redistest.Start(t).URL()
	a := start(t, twoPerHour+"admin: {credentials: [{name: kim, role: write, sha256: "+digest+"}]}\n",
		map[string]string{"TALLYGATE_REDIS_URL": redisURL, "TALLYGATE_ADMIN_LISTEN": address})
	b := start(t, twoPerHour, map[string]string{"TALLYGATE_REDIS_URL": redisURL})
	for _, e := range []*instance{a, b} {
		if status, _ := e.decide(t, `{"token":"T","cost":0}`); status != 200 {
			t.Fatalf("before: %d", status)
		}
		if r, err := http.Get(e.url + "/v1/admin/tokens/T"); err != nil || r.Body.Close() != nil || r.StatusCode != 404 {
			t.Errorf("the admin API on the public address: %v %v", r, err)
		}
	}
	request, err := http.NewRequest(http.MethodPatch, "http://"+address+"/v1/admin/tokens/T", strings.NewReader(`{"status":"blocked","reason":"leaked key"}`))
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set("Authorization", "Bearer "+token)
	response, err := http.DefaultClient.Do(request)
	if err != nil || response.Body.Close() != nil || response.StatusCode != 200 {
		t.Fatalf("%v %v", response, err)
	}
	changed := time.Now()
	for _, e := range []*instance{a, b} {
		eventually(t, func() bool { status, _ := e.decide(t, `{"token":"T","cost":0}`); return status == 403 })
	}
	if took := time.Since(changed); took > time.Second {
		t.Errorf("it took %v", took)
	}
}

func TestStartUpFailuresAreOneClearError(t *testing.T) {
	server := redistest.Start(t, "--requirepass", "secret-word")
	for name, c := range map[string]struct {
		args []string
		env  map[string]string
		want string
	}{
		"no file":           {[]string{"--config", "/does/not/exist.yaml"}, nil, "--config"},
		"unknown flag":      {[]string{"--colour"}, nil, "unknown flag: --colour"},
		"bad value":         {nil, map[string]string{"TALLYGATE_NAMESPACE": "a b"}, "namespace: \"a b\" is not"},
		"wrong password":    {nil, map[string]string{"TALLYGATE_REDIS_URL": "redis://:guess@" + server.Addr}, "redis.password_file"},
		"address in use":    {nil, map[string]string{"TALLYGATE_REDIS_URL": "redis://:secret-word@" + server.Addr, "TALLYGATE_ENFORCER_LISTEN": server.Addr}, "enforcer.listen"},
		"debug port in use": {nil, map[string]string{"TALLYGATE_REDIS_URL": "redis://:secret-word@" + server.Addr, "TALLYGATE_ENFORCER_LISTEN": "127.0.0.1:0", "TALLYGATE_ENFORCER_DEBUG_LISTEN": server.Addr}, "enforcer.debug_listen"},
	} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second) // one that starts after all must not hang
			defer cancel()
			err := run(ctx, c.args, func(name string) string { return c.env[name] }, io.Discard, io.Discard)
			if err == nil || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "guess") || strings.Contains(err.Error(), "secret-word") {
				t.Errorf("got %v, want %s", err, c.want)
			}
		})
	}
}

func TestPrintConfigShowsTheEffectiveConfiguration(t *testing.T) {
	var out bytes.Buffer
	env := func(name string) string {
		return map[string]string{"TALLYGATE_REDIS_URL": "redis://:hunter2@h:1/0", "TALLYGATE_NAMESPACE": "mine"}[name]
	}
	if err := run(context.Background(), []string{"--print-config"}, env, &out, io.Discard); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(out.String(), "namespace: mine") || strings.Contains(out.String(), "hunter2") {
		t.Errorf("got\n%s", out.String())
	}
}
