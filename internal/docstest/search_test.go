package docstest

import (
	"regexp"
	"strings"
	"testing"

	"github.com/tallygate/tallygate/internal/query"
)

func TestEveryQueryInTheDocumentationParses(t *testing.T) {
	text := read(t, "docs/search.md")
	var queries []string
	for _, row := range regexp.MustCompile(`(?m)^\| .* \| (`+"`.*`"+`) \|$`).FindAllStringSubmatch(text, -1) {
		for _, q := range strings.Split(row[1], " · ") {
			queries = append(queries, strings.Trim(q, "`"))
		}
	}
	for _, block := range regexp.MustCompile("(?s)```query\n(.*?)```").FindAllStringSubmatch(text, -1) {
		queries = append(queries, strings.Split(strings.TrimSpace(block[1]), "\n")...)
	}
	for _, q := range regexp.MustCompile(`(?:find '|q=)([^'…]*)'`).FindAllStringSubmatch(text, -1) {
		queries = append(queries, q[1])
	}
	if len(queries) < 30 {
		t.Errorf("only %d queries were found", len(queries))
	}
	for _, q := range queries {
		if _, err := query.Parse(q); err != nil {
			t.Errorf("%s: %v", q, err)
		}
	}
	for _, f := range query.Fields {
		if !strings.Contains(text, "`"+string(f)) {
			t.Errorf("nothing is said about %s", f)
		}
	}
}
