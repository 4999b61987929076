package rls

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// writeRules puts files into a fresh directory: name, content, name, content…
func writeRules(t testing.TB, files ...string) string {
	t.Helper()
	dir := t.TempDir()
	for i := 0; i < len(files); i += 2 {
		path := filepath.Join(dir, files[i])
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(files[i+1]), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func load(t testing.TB, files ...string) *Rules {
	t.Helper()
	rules, _, err := Load(writeRules(t, files...), LoadOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return rules
}

func TestEveryKeyOfTheFormatIsRead(t *testing.T) {
	rules := load(t, "edge.yaml", `
domain: edge
descriptors:
  - key: method
    value: get*
    share_threshold: true
    value_to_metric: yes
    descriptors:
      - key: user
        detailed_metric: true
        shadow_mode: true
        quota_mode: true
        metadata: {team: core, tiers: [1, 2.5, true, null], nested: {a: b}}
        rate_limit:
          unit: HOUR
          requests_per_unit: 1_000
          name: per-user
          replaces: [{name: general}]
  - key: internal
    rate_limit: {unlimited: true}
`)
	d := rules.domains["edge"]
	method := d.root.children["method_get*"]
	rl := method.children["user"].rule
	if !method.shared || !method.valueToMetric || !rl.detailed || !rl.shadow || !rl.quotaMode || rl.name != "per-user" || !slices.Equal(rl.replaces, []string{"general"}) {
		t.Errorf("got %+v of %+v", rl, method)
	}
	if l := rl.limits[0]; l.Quota != 1000 || l.Window != time.Hour || l.Name != "hour" {
		t.Errorf("limit is %+v", l)
	}
	if rl.path != "edge.method_get*.user" {
		t.Errorf("path is %s", rl.path)
	}
	if got := rl.metadata.AsMap(); got["team"] != "core" || len(got["tiers"].([]any)) != 4 || got["nested"].(map[string]any)["a"] != "b" {
		t.Errorf("metadata is %v", got)
	}
	if unlimited := d.root.children["internal"].rule; !unlimited.unlimited || len(unlimited.limits) != 0 {
		t.Errorf("got %+v", unlimited)
	}
}

func TestUnitsAreWindowsAlignedToTheEpoch(t *testing.T) {
	for unit, want := range map[string]time.Duration{
		"second": time.Second, "minute": time.Minute, "hour": time.Hour, "day": 24 * time.Hour,
		"week": 7 * 24 * time.Hour, "month": 30 * 24 * time.Hour, "Year": 365 * 24 * time.Hour,
	} {
		rules := load(t, "f", "domain: d\ndescriptors: [{key: k, rate_limit: {unit: "+unit+", requests_per_unit: 1}}]")
		rl := rules.domains["d"].root.children["k"].rule
		if l := rl.limits[0]; l.Window != want || rl.answer.Unit.String() != strings.ToUpper(unit) {
			t.Errorf("%s: %+v, %v", unit, l, rl.answer)
		}
	}
	rules := load(t, "f", "domain: d\ndescriptors: [{key: k, rate_limit: {unit: minute, unit_multiplier: 15, requests_per_unit: 1}}]")
	if l := rules.domains["d"].root.children["k"].rule.limits[0]; l.Window != 15*time.Minute || l.Name != "15-minute" {
		t.Errorf("15 minutes: %+v", l)
	}
}

func TestATimeZoneMakesAUnitOneOfTheCalendar(t *testing.T) {
	rules := load(t, "f", "domain: d\ndescriptors: [{key: k, rate_limit: {unit: month, time_zone: Europe/Vienna, requests_per_unit: 1}}]")
	rl := rules.domains["d"].root.children["k"].rule
	july := time.Date(2026, 7, 15, 12, 0, 0, 0, time.UTC).UnixMilli()
	if l := rl.limits[0]; l.WindowEnd(july) != time.Date(2026, 7, 31, 22, 0, 0, 0, time.UTC).UnixMilli() || l.Name != "month-europe-vienna" || rl.answer.Unit.String() != "MONTH" {
		t.Errorf("%+v ends at %v, %v", l, time.UnixMilli(l.WindowEnd(july)), rl.answer)
	}
	for _, wrong := range []string{"time_zone: Nowhere/At_all", "time_zone: UTC, unit_multiplier: 2"} {
		if _, _, err := Load(writeRules(t, "f", "domain: d\ndescriptors: [{key: k, rate_limit: {unit: month, "+wrong+", requests_per_unit: 1}}]"), LoadOptions{}); err == nil {
			t.Errorf("%s is accepted", wrong)
		}
	}
}

func TestAllProblemsOfASetAreReportedWithFileAndLine(t *testing.T) {
	dir := writeRules(t, "a.yaml", `domain: a
descriptors:
  - key: k
    rate_limits: {unit: day}
  - key: k
    value: v
    rate_limit: {unit: fortnight, requests_per_unit: 1}
  - key: k
    value: v
  - value: lonely
  - key: k
    value: w
    share_threshold: true
  - key: u
    rate_limit: {unlimited: true, unit: day}
  - key: n
    rate_limit: {unit: day, requests_per_unit: -1}
  - key: r
    rate_limit: {unit: day, requests_per_unit: 4294967296, name: r, replaces: [{name: r}, {}]}
  - key: s
    shadow_mode: maybe
  - key: m
    rate_limit: {unit: year, unit_multiplier: 11, requests_per_unit: 1}
  - key: [x]
`, "b.yaml", "domain: a\n", "sub/c.yaml", "descriptors: []\n", "d.yaml", "domain: [", "e.yaml", "", ".hidden", "nonsense: [", "..data/x.yaml", "nonsense: [")
	_, _, err := Load(dir, LoadOptions{})
	if !errors.Is(err, ErrRules) {
		t.Fatalf("got %v", err)
	}
	want := []string{
		`a.yaml:4: unknown key "rate_limits" in a descriptor; known here: descriptors, detailed_metric, key,`,
		`a.yaml:7: unit "fortnight" is not one of: second,`,
		`a.yaml:8: descriptor a.k_v stands twice, first on line 5`,
		`a.yaml:10: a descriptor has no key`,
		`a.yaml:11: descriptor a.k_w: share_threshold needs a *`,
		`a.yaml:15: an unlimited limit has no unit`,
		`a.yaml:17: requests_per_unit must be a whole number from 0 to 4294967295`,
		`a.yaml:19: requests_per_unit must be`,
		`a.yaml:19: replaces: "r" is the limit's own name`,
		`a.yaml:19: replaces: an entry has no name`,
		`a.yaml:21: shadow_mode must be true or false`,
		`a.yaml:23: unit_multiplier: 11 of a year is more than ten years`,
		`a.yaml:24: key must be a single value`,
		`b.yaml:1: domain "a" stands in a.yaml too`,
		filepath.Join("sub", "c.yaml") + `:1: the domain is empty`,
		`d.yaml:1: not valid YAML`,
		`e.yaml: is empty`,
	}
	for _, w := range want {
		if !strings.Contains(err.Error(), w) {
			t.Errorf("missing: %s", w)
		}
	}
	if got := strings.Count(err.Error(), "\n"); got > len(want)+1 || strings.Contains(err.Error(), "nonsense") {
		t.Errorf("%d problems, want about %d:\n%v", got, len(want), err)
	}
}

func TestAKeyInTheWrongPlaceIsAWarningAsItHasAlwaysBeenAccepted(t *testing.T) {
	dir := writeRules(t, "a.yaml", `domain: a
descriptors:
  - key: k
    rate_limit:
      unit: day
      requests_per_unit: 1
      shadow_mode: true
`)
	rules, warnings, err := Load(dir, LoadOptions{})
	if err != nil || rules.domains["a"].root.children["k"].rule.shadow {
		t.Fatalf("%v", err)
	}
	if len(warnings) != 1 || warnings[0].String() != "a.yaml:7: shadow_mode has no effect in rate_limit; it belongs into a descriptor" {
		t.Errorf("warnings: %v", warnings)
	}
}

func TestAnchorsAndMergeKeysAreFollowed(t *testing.T) {
	rules := load(t, "a.yaml", `
domain: a
descriptors:
  - key: first
    rate_limit: &limit {unit: minute, requests_per_unit: 5}
  - key: second
    rate_limit: *limit
  - key: third
    rate_limit:
      <<: *limit
      requests_per_unit: 7
`)
	for key, want := range map[string]int64{"first": 5, "second": 5, "third": 7} {
		if l := rules.domains["a"].root.children[key].rule.limits[0]; l.Quota != want || l.Window != time.Minute {
			t.Errorf("%s: %+v", key, l)
		}
	}
}

func TestFilesOfOneDomainAreMergedOnRequestOnly(t *testing.T) {
	dir := writeRules(t, "1.yaml", "domain: a\ndescriptors: [{key: x}]", "2.yaml", "domain: a\ndescriptors: [{key: y}]")
	if _, _, err := Load(dir, LoadOptions{}); err == nil {
		t.Error("accepted twice")
	}
	rules, _, err := Load(dir, LoadOptions{MergeDomains: true})
	if err != nil || len(rules.domains["a"].root.children) != 2 {
		t.Errorf("%v, %v", rules, err)
	}
}

func TestAliasesCannotMultiplyWithoutEnd(t *testing.T) {
	var b strings.Builder
	b.WriteString("domain: a\ndescriptors:\n- {key: k0, metadata: {v: &a0 [x]}}\n")
	for i := range 12 { // each ten times as large as the one before
		fmt.Fprintf(&b, "- {key: k%d, metadata: {v: &a%d [%s]}}\n", i+1, i+1, strings.Repeat(fmt.Sprintf("*a%d, ", i), 10))
	}
	if _, _, err := Load(writeRules(t, "bomb.yaml", b.String()), LoadOptions{}); err == nil || !strings.Contains(err.Error(), "aliases expanded") {
		t.Errorf("got %v", err)
	}
}

func TestABrokenSetIsRefusedAsAWholeAndTheOneBeforeHolds(t *testing.T) {
	dir := writeRules(t, "a.yaml", "domain: a\n", "b.yaml", "domain: b\n")
	s, err := Open(dir, LoadOptions{}, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	write := func(name, content string) {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if changed, err := s.refresh(); changed || err != nil {
		t.Errorf("nothing changed: %v, %v", changed, err)
	}
	write("a.yaml", "domain: other\n")
	write("b.yaml", "domane: b\n")
	if changed, err := s.refresh(); changed || !errors.Is(err, ErrRules) || !slices.Equal(s.Rules().Domains(), []string{"a", "b"}) {
		t.Errorf("after a broken change: %v, %v, %v", changed, err, s.Rules().Domains())
	}
	if changed, err := s.refresh(); changed || err != nil {
		t.Errorf("the same broken set is looked at again: %v, %v", changed, err)
	}
	write("b.yaml", "domain: beta\n")
	if changed, err := s.refresh(); !changed || err != nil || !slices.Equal(s.Rules().Domains(), []string{"beta", "other"}) {
		t.Errorf("after the repair: %v, %v, %v", changed, err, s.Rules().Domains())
	}
	if err := os.Rename(dir, dir+"-away"); err != nil {
		t.Fatal(err)
	}
	if _, err := s.refresh(); err == nil || len(s.Rules().Domains()) != 2 {
		t.Errorf("without its directory: %v", err)
	}
	if err := os.Rename(dir+"-away", dir); err != nil {
		t.Fatal(err)
	}
	if changed, err := s.refresh(); !changed || err != nil {
		t.Errorf("the directory is back: %v, %v", changed, err)
	}
}

func TestAMountedMapIsReloadedWhenItsLinkIsSwapped(t *testing.T) {
	dir := writeRules(t, "..v1/a.yaml", "domain: one\n", "..v2/a.yaml", "domain: second\n")
	for _, link := range [][2]string{{"..v1", "..data"}, {"..data/a.yaml", "a.yaml"}} {
		if err := os.Symlink(link[0], filepath.Join(dir, link[1])); err != nil {
			t.Fatal(err)
		}
	}
	s, err := Open(dir, LoadOptions{}, slog.New(slog.DiscardHandler))
	if err != nil || s.Rules().domains["one"] == nil {
		t.Fatal(err)
	}
	if err := os.Symlink("..v2", filepath.Join(dir, "..new")); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(filepath.Join(dir, "..new"), filepath.Join(dir, "..data")); err != nil {
		t.Fatal(err)
	}
	if changed, err := s.refresh(); !changed || err != nil || s.Rules().domains["second"] == nil {
		t.Errorf("%v, %v", changed, err)
	}
}

// FuzzLoad proves that no file makes the reader panic or loop.
func FuzzLoad(f *testing.F) {
	for _, seed := range []string{
		"domain: a\ndescriptors:\n- key: k\n  value: v*\n  rate_limit: {unit: day, requests_per_unit: 1}\n",
		"domain: a\ndescriptors: &d [{key: k, descriptors: *d}]", "<<: {a: b}", "a: &a *a", "domain: |\n x\n", "- - -", "domain: !!int 5",
		"domain: a\ndescriptors: [{key: k, metadata: {<<: [*x]}}]", "? [a]\n: b",
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, src []byte) {
		r := &Rules{domains: map[string]*domain{}}
		r.add("f", src, LoadOptions{})
	})
}
