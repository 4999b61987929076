package search

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/tallygate/tallygate/internal/query"
)

// version of the schema: raise it with every change below, and Migrate does the
// rest wherever Tallygate is updated.
const version = 1

// field is a field of a hash and what it is called in queries.
type field struct {
	name string // in the hash
	as   query.Field
}

// fields are indexed. All are sortable, in their own bytes (UNF), which means that
// RediSearch keeps their values at hand and reads no hash to answer.
var fields = []field{
	{"token", query.Token},
	{"policy", query.Policy},
	{"owner", query.Owner},
	{"status", query.Status},
	{"labels", query.Label},
	{"ops", query.Ops},
	{"rejected", query.Rejected},
	{"refunded", query.Refunded},
	{"rate", query.Rate},
	{"peak", query.Peak},
	{"percent", query.Percent},
	{"first", query.First},
	{"last", query.Last},
}

// separator stands between the labels in their field. No word contains it.
const separator = "\n"

// schema returns what stands after FT.CREATE name. The order of a field's
// attributes matters to the server: SEPARATOR and CASESENSITIVE before SORTABLE.
func schema(prefix string) []any {
	// A hash without a token is one that somebody else has begun; the tracker adds
	// what is missing when it first has something to add.
	args := []any{"ON", "HASH", "PREFIX", 1, prefix, "FILTER", "exists(@token)", "SCHEMA"}
	for _, f := range fields {
		args = append(args, f.name)
		if f.name != string(f.as) {
			args = append(args, "AS", string(f.as))
		}
		switch {
		case f.as.Kind() == query.Word:
			args = append(args, "TAG", "SEPARATOR", separator, "CASESENSITIVE", "SORTABLE", "UNF")
		default:
			args = append(args, "NUMERIC", "SORTABLE", "UNF")
		}
	}
	return args
}

// indexName returns the name of the index behind an alias.
func indexName(alias string, version int) string { return fmt.Sprintf("%s:v%d", alias, version) }

// indexVersion undoes indexName; false for any other name.
func indexVersion(alias, index string) (int, bool) {
	digits, ok := strings.CutPrefix(index, alias+":v")
	n, err := strconv.Atoi(digits)
	return n, ok && err == nil
}
