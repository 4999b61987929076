package query

import (
	"fmt"
	"slices"
	"strings"
)

// Field is what a query can name; its text is its name in the language.
type Field string

// The fields.
const (
	Token    Field = "token"
	Policy   Field = "policy"
	Owner    Field = "owner"
	Status   Field = "status"
	Label    Field = "label" // a token can have several
	Ops      Field = "ops"
	Rejected Field = "rejected"
	Refunded Field = "refunded"
	Rate     Field = "rate"
	Peak     Field = "peak"
	Percent  Field = "percent"
	First    Field = "first"
	Last     Field = "last"
)

// Fields are all fields, in the order in which queries are printed.
var Fields = []Field{Token, Policy, Owner, Status, Label, Ops, Rejected, Refunded, Rate, Peak, Percent, First, Last}

// Kind says what a field holds.
type Kind uint8

// The kinds. The zero value is that of no field.
const (
	None   Kind = iota
	Word        // text that is matched
	Figure      // a number that is compared
	Time        // unix seconds that are compared, or their age
)

// Kind returns the kind of f.
func (f Field) Kind() Kind {
	switch f {
	case Token, Policy, Owner, Status, Label:
		return Word
	case Ops, Rejected, Refunded, Rate, Peak, Percent:
		return Figure
	case First, Last:
		return Time
	}
	return None
}

// CanSort reports whether tokens can be put in the order of f.
func (f Field) CanSort() bool { return f == Token || f.Kind() == Figure || f.Kind() == Time }

// CanGroup reports whether tokens can be added up by f.
func (f Field) CanGroup() bool { return f == Policy || f == Owner || f == Status }

func (f Field) place() int { return slices.Index(Fields, f) }

// ParseSort parses the name of a field with a minus sign before it for the
// highest first. The error wraps ErrSort.
func ParseSort(s string) (Sort, error) {
	name, descending := strings.CutPrefix(s, "-")
	if f := Field(name); f.CanSort() {
		return Sort{Field: f, Ascending: !descending}, nil
	}
	return Sort{}, fmt.Errorf("%w: %.32q is none of %s, with a minus sign for the highest first", ErrSort, s, names(Field.CanSort))
}

// String returns what ParseSort parses.
func (s Sort) String() string {
	switch {
	case s.Field == "":
		return "-" + string(Ops)
	case s.Ascending:
		return string(s.Field)
	}
	return "-" + string(s.Field)
}

// names lists the fields for which ok holds.
func names(ok func(Field) bool) string {
	var all []string
	for _, f := range Fields {
		if ok(f) {
			all = append(all, string(f))
		}
	}
	return strings.Join(all, ", ")
}
