// Package deploytest keeps deploy/ true: every setting, program, metric and column
// that is named there exists.
package deploytest

import (
	"context"
	"encoding/json"
	"io/fs"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/goccy/go-yaml"
	"github.com/jackc/pgx/v5"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/tallygate/tallygate/internal/config"
	"github.com/tallygate/tallygate/internal/enforcer"
	"github.com/tallygate/tallygate/internal/history"
	"github.com/tallygate/tallygate/internal/indexer"
	"github.com/tallygate/tallygate/internal/memory"
	"github.com/tallygate/tallygate/internal/pgtest"
	"github.com/tallygate/tallygate/internal/proctest"
	"github.com/tallygate/tallygate/internal/service"
	"github.com/tallygate/tallygate/internal/tracker"
	"github.com/tallygate/tallygate/internal/usage/localbus"
)

// root is the repository, deploy what is tested, seen from this package.
const (
	root   = "../.."
	deploy = root + "/deploy"
)

func TestMain(m *testing.M) { os.Exit(pgtest.Main(m)) }

// files returns the content of the files under deploy/ with one of the endings.
func files(t *testing.T, endings ...string) map[string]string {
	t.Helper()
	all := map[string]string{}
	err := filepath.WalkDir(deploy, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !slices.Contains(endings, filepath.Ext(path)) {
			return err
		}
		content, err := os.ReadFile(path)
		all[strings.TrimPrefix(filepath.ToSlash(path), deploy+"/")] = string(content)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(all) == 0 {
		t.Fatalf("no %v under deploy/", endings)
	}
	return all
}

// settings returns the environment variables that the configuration knows: those
// that it asks for.
func settings(t *testing.T) map[string]bool {
	t.Helper()
	asked := map[string]bool{"TALLYGATE_CONFIG": true}
	if _, err := config.Load("", func(name string) string { asked[name] = true; return "" }); err != nil {
		t.Fatal(err)
	}
	return asked
}

func TestEveryEnvironmentVariableIsASetting(t *testing.T) {
	known := settings(t)
	named := regexp.MustCompile(`TALLYGATE_[A-Z_]*[A-Z]`)
	for path, content := range files(t, ".yaml", ".yml", ".service", ".tpl") {
		// In the chart a service's name is computed.
		var all []string
		for _, name := range []string{"ENFORCER", "TRACKER", "INDEXER"} {
			all = append(all, strings.ReplaceAll(content, "{{ upper $name }}", name))
		}
		for _, name := range named.FindAllString(strings.Join(all, "\n"), -1) {
			if !known[name] && name != "TALLYGATE_IMAGE" { // which compose itself reads
				t.Errorf("%s sets %s, which no service reads", path, name)
			}
		}
	}
}

func TestEveryConfigurationIsValid(t *testing.T) {
	if _, err := config.Load(deploy+"/compose/tallygate.yaml", func(string) string { return "" }); err != nil {
		t.Error(err)
	}
	var values struct {
		Config yaml.MapSlice `yaml:"config"`
	}
	decode(t, "helm/tallygate/values.yaml", &values)
	written, err := yaml.Marshal(values.Config)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "tallygate.yaml")
	if err := os.WriteFile(path, written, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := config.Load(path, func(string) string { return "" }); err != nil {
		t.Error(err)
	}
}

func decode(t *testing.T, path string, into any) {
	t.Helper()
	content, err := os.ReadFile(filepath.Join(deploy, path))
	if err != nil {
		t.Fatal(err)
	}
	if err := yaml.Unmarshal(content, into); err != nil {
		t.Fatalf("%s: %v", path, err)
	}
}

// composed is what these tests ask about compose.yaml.
type composed struct {
	Services map[string]struct {
		Image     string   `yaml:"image"`
		Command   []string `yaml:"command"`
		Volumes   []string `yaml:"volumes"`
		Ports     []string `yaml:"ports"`
		DependsOn any      `yaml:"depends_on"`
	} `yaml:"services"`
	Volumes map[string]any `yaml:"volumes"`
}

func TestComposeNamesWhatExistsAndPublishesOnLoopbackOnly(t *testing.T) {
	var c composed
	decode(t, "compose.yaml", &c)
	for _, name := range []string{"redis", "postgres", "enforcer", "tracker", "indexer", "envoy", "prometheus", "grafana"} {
		s, ok := c.Services[name]
		if !ok {
			t.Errorf("there is no service %s", name)
			continue
		}
		if !regexp.MustCompile(`^\$\{[A-Z_]+_IMAGE:-[a-z/]+:\S+\}$`).MatchString(s.Image) || strings.Contains(s.Image, "latest") && !strings.Contains(s.Image, "tallygate:") {
			t.Errorf("%s: the image %q is not pinned and replaceable", name, s.Image)
		}
		for _, v := range s.Volumes {
			source, _, _ := strings.Cut(v, ":")
			if _, named := c.Volumes[source]; named {
				continue
			}
			if _, err := os.Stat(filepath.Join(deploy, source)); err != nil {
				t.Errorf("%s mounts %s, which is not there", name, source)
			}
		}
		for _, p := range s.Ports {
			if !strings.HasPrefix(p, "127.0.0.1:") {
				t.Errorf("%s publishes %s to everybody", name, p)
			}
		}
		needed := map[string]bool{}
		switch d := s.DependsOn.(type) {
		case []any:
			for _, n := range d {
				needed[n.(string)] = true
			}
		case map[string]any:
			for n := range d {
				needed[n] = true
			}
		}
		for n := range needed {
			if _, ok := c.Services[n]; !ok {
				t.Errorf("%s waits for %s, which is not there", name, n)
			}
		}
	}
}

func TestEveryProgramAndFlagExists(t *testing.T) {
	commands := map[string][]string{}
	for path, content := range files(t, ".service") {
		m := regexp.MustCompile(`(?m)^ExecStart=/usr/local/bin/(.*)$`).FindStringSubmatch(content)
		if m == nil {
			t.Fatalf("%s starts nothing", path)
		}
		commands[path] = strings.Fields(m[1])
	}
	var c composed
	decode(t, "compose.yaml", &c)
	for _, name := range []string{"enforcer", "tracker", "indexer"} {
		command := slices.Clone(c.Services[name].Command)
		command[0] = strings.TrimPrefix(command[0], "/")
		commands["compose.yaml: "+name] = command
		commands["helm: "+name] = []string{name, "--config"}
	}
	common := service.Command("x", "", func(string) string { return "" }, nil)
	for where, command := range commands {
		if _, err := os.Stat(filepath.Join(root, "cmd", command[0], "main.go")); err != nil {
			t.Errorf("%s starts %s, which does not exist", where, command[0])
		}
		for _, arg := range command[1:] {
			if flag, ok := strings.CutPrefix(arg, "--"); ok && common.Flags().Lookup(flag) == nil {
				t.Errorf("%s passes --%s, which no service knows", where, flag)
			}
		}
	}
}

func TestUnitsAreWhatSystemdExpects(t *testing.T) {
	analyze := proctest.Require(t, "install it (Debian: apt-get install systemd)", "systemd-analyze")
	dir := t.TempDir()
	args := []string{"verify", "--man=no", "--recursive-errors=no"}
	for path, content := range files(t, ".service") {
		unit := filepath.Join(dir, filepath.Base(path))
		// What is started is not installed here.
		content = regexp.MustCompile(`/usr/local/bin/\w+`).ReplaceAllString(content, "/bin/true")
		if err := os.WriteFile(unit, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		args = append(args, unit)
	}
	if out, err := exec.Command(analyze, args...).CombinedOutput(); err != nil || strings.Contains(string(out), "Unknown") {
		t.Errorf("%v\n%s", err, out)
	}
}

// metrics returns the names of all metrics that the services have.
func metrics(t *testing.T) map[string]bool {
	t.Helper()
	ctx := context.Background()
	c, err := config.Load("", func(string) string { return "" })
	if err != nil {
		t.Fatal(err)
	}
	kept, err := history.Open(ctx, "sqlite:"+filepath.Join(t.TempDir(), "history.db"))
	if err != nil {
		t.Fatal(err)
	}
	defer kept.Close()
	s := service.New("test", c.Log, os.Stderr)
	store, bus := memory.New(memory.Options{}), localbus.New(0)
	enforcer.New(store, enforcer.Compile(c), enforcer.Options{Metrics: s.Metrics})
	tracker.New(store, store, bus, tracker.Options{Log: slog.New(slog.DiscardHandler), Registerer: s.Metrics})
	indexer.New(bus, kept, indexer.Options{Registerer: s.Metrics})
	indexer.NewMaintenance(kept, indexer.MaintenanceOptions{Registerer: s.Metrics})
	descriptions := make(chan *prometheus.Desc)
	go func() { s.Metrics.Describe(descriptions); close(descriptions) }()
	names := map[string]bool{}
	for d := range descriptions {
		name, _, _ := strings.Cut(strings.TrimPrefix(d.String(), `Desc{fqName: "`), `"`)
		names[name] = true
		for _, suffix := range []string{"_bucket", "_sum", "_count"} {
			names[name+suffix] = true
		}
	}
	return names
}

func TestEveryMetricOfDashboardsAndAlertsExists(t *testing.T) {
	known, used := metrics(t), 0
	for path, content := range files(t, ".json", ".yml") {
		for _, name := range regexp.MustCompile(`\btallygate_[a-z_]+`).FindAllString(content, -1) {
			if used++; !known[name] {
				t.Errorf("%s asks for %s, which no service has", path, name)
			}
		}
	}
	if used < 20 {
		t.Errorf("only %d metrics are named", used)
	}
}

func TestEveryQueryOfTheDashboardsRunsOnTheSchema(t *testing.T) {
	ctx := context.Background()
	url := pgtest.Database(t)
	kept, err := history.Open(ctx, url)
	if err != nil {
		t.Fatal(err)
	}
	defer kept.Close()
	db, err := pgx.Connect(ctx, url)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close(ctx)
	ran := 0
	for path, content := range files(t, ".json") {
		var board struct {
			Panels []struct {
				Title   string
				Targets []struct{ RawSQL string }
			}
		}
		if err := json.Unmarshal([]byte(content), &board); err != nil {
			t.Fatalf("%s: %v", path, err)
		}
		for _, p := range board.Panels {
			for _, target := range p.Targets {
				if target.RawSQL == "" {
					continue
				}
				query := strings.NewReplacer("$__unixEpochFrom()", "1700000000", "$__unixEpochTo()", "1800000000").Replace(target.RawSQL)
				rows, err := db.Query(ctx, query)
				if err == nil {
					rows.Close()
					err = rows.Err()
				}
				if err != nil || strings.Contains(query, "$__") {
					t.Errorf("%s, %s: %v\n%s", path, p.Title, err, query)
				}
				ran++
			}
		}
	}
	if ran < 5 {
		t.Errorf("only %d queries", ran)
	}
}
