package rls_test

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"github.com/tallygate/tallygate/internal/proctest"
	"github.com/tallygate/tallygate/internal/redistest"
)

var (
	update  = flag.Bool("update", false, "write the answers that are given into testdata/conformance/calls")
	against = flag.String("against", "", "another program to run the calls against, in envoyproxy/ratelimit's environment, instead of the enforcer")
)

// scenario is calls that follow each other, each with its answer.
type scenario struct {
	// Server is plain, full (headers and dynamic metadata) or shadow (global shadow mode).
	Server string     `json:"server"`
	Calls  []exchange `json:"calls"`
}

type exchange struct {
	Ask    json.RawMessage `json:"ask"`
	Answer json.RawMessage `json:"answer,omitempty"`
	Error  string          `json:"error,omitempty"` // a gRPC code, instead of an answer
}

// built is the directory of the program, once it was needed.
var built string

// program builds the enforcer once.
var program = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "tallygate-conformance")
	if err != nil {
		return "", err
	}
	built = dir
	path := filepath.Join(dir, "enforcer")
	out, err := exec.Command("go", "build", "-o", path, "github.com/tallygate/tallygate/cmd/enforcer").CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("%w: %s", err, out)
	}
	return path, nil
})

func TestMain(m *testing.M) {
	flag.Parse()
	code := m.Run()
	if built != "" {
		_ = os.RemoveAll(built)
	}
	os.Exit(code)
}

// rulesDir copies rules below RUNTIME_ROOT/config.
func rulesDir(t testing.TB, patterns ...string) string {
	t.Helper()
	root := t.TempDir()
	if err := os.Mkdir(filepath.Join(root, "config"), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, pattern := range patterns {
		files, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range files {
			content, err := os.ReadFile(f)
			if err == nil {
				err = os.WriteFile(filepath.Join(root, "config", filepath.Base(f)), content, 0o644)
			}
			if err != nil {
				t.Fatal(err)
			}
		}
	}
	return root
}

// start runs the enforcer, or the program to compare with, and returns its gRPC address.
func start(t testing.TB, redis, root string, env ...string) (string, *proctest.Process) {
	t.Helper()
	address, http, debug := proctest.FreeAddr(t), proctest.FreeAddr(t), proctest.FreeAddr(t)
	port := func(address string) string { return address[strings.LastIndexByte(address, ':')+1:] }
	command := exec.Command(*against)
	if *against == "" {
		path, err := program()
		if err != nil {
			t.Fatal(err)
		}
		command = exec.Command(path, "--compat", "envoy-ratelimit")
	}
	command.Env = append(append(os.Environ(),
		"RUNTIME_ROOT="+root, "RUNTIME_SUBDIRECTORY=", "RUNTIME_WATCH_ROOT=false", "REDIS_SOCKET_TYPE=tcp", "REDIS_URL="+redis,
		"HOST=127.0.0.1", "PORT="+port(http), "GRPC_HOST=127.0.0.1", "GRPC_PORT="+port(address), "DEBUG_HOST=127.0.0.1", "DEBUG_PORT="+port(debug),
		"USE_STATSD=false", "LOG_LEVEL=error"), env...)
	process := proctest.Start(t, command)
	connection := dial(t, address)
	if err := process.Until(20*time.Second, func() error {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err := healthpb.NewHealthClient(connection).Check(ctx, &healthpb.HealthCheckRequest{Service: "ratelimit"})
		return err
	}); err != nil {
		t.Fatal(err)
	}
	return address, process
}

func dial(t testing.TB, address string, options ...grpc.DialOption) *grpc.ClientConn {
	t.Helper()
	if len(options) == 0 {
		options = []grpc.DialOption{grpc.WithTransportCredentials(insecure.NewCredentials())}
	}
	connection, err := grpc.NewClient(address, options...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { connection.Close() })
	return connection
}

func TestConformance(t *testing.T) {
	redis := redistest.Start(t)
	sources := []string{"testdata/conformance/rules/*.yaml"}
	if *against == "" {
		sources = append(sources, "testdata/conformance/beyond/*.yaml")
	}
	root := rulesDir(t, sources...)
	servers := map[string]pb.RateLimitServiceClient{}
	for name, env := range map[string][]string{
		"plain": nil, "full": {"LIMIT_RESPONSE_HEADERS_ENABLED=true", "RESPONSE_DYNAMIC_METADATA=true"}, "shadow": {"SHADOW_MODE=true"},
	} {
		address, _ := start(t, redis.Addr, root, env...)
		servers[name] = pb.NewRateLimitServiceClient(dial(t, address))
	}
	files, err := filepath.Glob("testdata/conformance/calls/*.json")
	if err != nil || len(files) < 20 {
		t.Fatalf("%d scenarios, %v", len(files), err)
	}
	for _, f := range files {
		name := strings.TrimSuffix(filepath.Base(f), ".json")
		t.Run(name, func(t *testing.T) {
			if *against != "" && strings.HasPrefix(name, "beyond-") {
				t.Skip("beyond envoyproxy/ratelimit")
			}
			play(t, f, servers)
		})
	}
}

func play(t *testing.T, file string, servers map[string]pb.RateLimitServiceClient) {
	content, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var s scenario
	if err := json.Unmarshal(content, &s); err != nil {
		t.Fatal(err)
	}
	for i := range s.Calls {
		e := &s.Calls[i]
		var request pb.RateLimitRequest
		if err := protojson.Unmarshal(e.Ask, &request); err != nil {
			t.Fatal(err)
		}
		response, err := servers[s.Server].ShouldRateLimit(t.Context(), &request)
		if err == nil {
			withoutTime(t, response)
		}
		if *update {
			e.Answer, e.Error = nil, ""
			if err != nil {
				e.Error = status.Code(err).String()
				continue
			}
			if e.Answer, err = (protojson.MarshalOptions{EmitDefaultValues: true}).Marshal(response); err != nil {
				t.Fatal(err)
			}
			continue
		}
		if err != nil || e.Error != "" {
			if got := status.Code(err).String(); got != e.Error {
				t.Errorf("call %d: %v, want %q", i, err, e.Error)
			}
			continue
		}
		var want pb.RateLimitResponse
		if err := protojson.Unmarshal(e.Answer, &want); err != nil {
			t.Fatal(err)
		}
		if !proto.Equal(response, &want) {
			t.Errorf("call %d: %s\n got  %s\n want %s", i, protojson.Format(&request), protojson.MarshalOptions{}.Format(response), protojson.MarshalOptions{}.Format(&want))
		}
	}
	if *update {
		content, err := json.MarshalIndent(s, "", " ")
		if err == nil {
			err = os.WriteFile(file, append(content, '\n'), 0o644)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

// withoutTime checks what depends on the time of day and takes it out.
func withoutTime(t *testing.T, r *pb.RateLimitResponse) {
	t.Helper()
	for _, st := range r.GetStatuses() {
		if st.GetCurrentLimit() == nil {
			if st.GetDurationUntilReset() != nil {
				t.Errorf("a reset without a limit: %v", st)
			}
			continue
		}
		if d := st.GetDurationUntilReset(); d.GetSeconds() <= 0 || d.GetSeconds() > 5*365*24*3600 || d.GetNanos() != 0 {
			t.Errorf("reset in %v", d)
		}
		st.DurationUntilReset = nil
	}
	for _, h := range r.GetResponseHeadersToAdd() {
		if strings.HasSuffix(h.GetKey(), "-Reset") {
			if h.GetValue() == "" || strings.HasPrefix(h.GetValue(), "-") {
				t.Errorf("header %v", h)
			}
			h.Value = "SECONDS"
		}
	}
}
