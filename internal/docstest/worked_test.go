package docstest

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/tallygate/tallygate/internal/config"
	"github.com/tallygate/tallygate/internal/enforcer"
	"github.com/tallygate/tallygate/internal/quota"
	"github.com/tallygate/tallygate/internal/quota/quotatest"
	"github.com/tallygate/tallygate/internal/token"
)

// The worked examples of the concepts are worked: each policy with "# worked" in
// its first line is asked what the table after it says, line by line.
func TestWorkedExamplesAreRight(t *testing.T) {
	const name = "docs/concepts.md"
	parts := strings.Split(read(t, name), "```yaml\n# worked")
	if len(parts) < 3 {
		t.Fatalf("%s has %d worked examples", name, len(parts)-1)
	}
	for _, part := range parts[1:] {
		title, rest, _ := strings.Cut(part, "\n")
		policy, rest, _ := strings.Cut(rest, "```")
		t.Run(strings.TrimPrefix(title, ": "), func(t *testing.T) { work(t, policy, table(rest)) })
	}
}

// table returns the cells of the first table of a text, its heading first.
func table(text string) [][]string {
	var rows [][]string
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		if !strings.HasPrefix(line, "|") {
			if len(rows) > 0 {
				break
			}
			continue
		}
		cells := strings.Split(strings.Trim(line, "|"), "|")
		for i := range cells {
			cells[i] = strings.Trim(strings.TrimSpace(cells[i]), "`*")
		}
		rows = append(rows, cells)
	}
	return rows
}

// work asks the limits of the only policy of src. The columns of rows are
//
//	at | resource | units | answer | left of each limit, headed by its name | why
//
// of which at may be left empty for "at once", and units may be "20 × 1".
func work(t *testing.T, src string, rows [][]string) {
	file := filepath.Join(t.TempDir(), "tallygate.yaml")
	if err := os.WriteFile(file, []byte(src), 0o600); err != nil {
		t.Fatal(err)
	}
	c, err := config.Load(file, func(string) string { return "" })
	if err != nil {
		t.Fatal(err)
	}
	policies := enforcer.Compile(c)
	oracle := &quotatest.Oracle{Clock: new(quotatest.Clock)}
	head := rows[0]
	for _, row := range rows[2:] { // after the heading and the line below it
		if row[0] != "" {
			oracle.Clock.Set(parseAt(t, row[0]))
		}
		resource, err := token.ParseResource(row[1])
		if err != nil {
			t.Fatal(err)
		}
		rule, err := policies.Find("", resource)
		if err != nil {
			t.Fatal(err)
		}
		count, units := 1, row[2]
		if n, each, repeated := strings.Cut(units, " × "); repeated {
			count, units = number(t, n), each
		}
		var r quota.Result
		for i := range count {
			r = oracle.DecideAll(t.Context(), []quota.Request{{Token: "T", Resource: resource, Cost: int64(number(t, units)), Limits: rule.Limits}})[0]
			if r.Err != nil || string(r.Outcome()) != row[3] {
				t.Errorf("%v, request %d: %s (%v)", row, i+1, r.Outcome(), r.Err)
			}
		}
		for i := 4; i < len(head); i++ {
			limit, isLeft := strings.CutSuffix(head[i], " left")
			if !isLeft {
				continue
			}
			left := "" // of a limit that does not cover the resource
			for j, l := range rule.Limits {
				if l.Name == limit {
					left = strconv.FormatInt(r.Limits[j].Remaining, 10)
				}
			}
			if left != row[i] {
				t.Errorf("%v: %q of %s is left", row, left, limit)
			}
		}
		for i, h := range head {
			if h == "retry after" && row[i] != "" && row[i] != retryAfter(r.RetryAfter) {
				t.Errorf("%v: retry after %s", row, retryAfter(r.RetryAfter))
			}
		}
	}
}

func retryAfter(d time.Duration) string {
	if d == quota.Never {
		return "never"
	}
	return regexp.MustCompile(`([a-z])0[ms].*$`).ReplaceAllString(d.String(), "$1")
}

func number(t *testing.T, s string) int {
	t.Helper()
	n, err := strconv.Atoi(s)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// parseAt reads a time of day, of a day of its own, or a date and time.
func parseAt(t *testing.T, s string) int64 {
	t.Helper()
	if !strings.Contains(s, " ") {
		s = "2026-03-04 " + s
	}
	at, err := time.Parse("2006-01-02 15:04:05", s)
	if err != nil {
		t.Fatal(fmt.Errorf("time %q: %w", s, err))
	}
	return at.UnixMilli()
}
