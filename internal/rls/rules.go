package rls

import (
	"cmp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	common "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/tallygate/tallygate/internal/quota"
)

// Rules is a compiled set of rules. It is immutable and safe for concurrent use.
type Rules struct {
	domains map[string]*domain
}

// Domains returns the names of the domains, sorted.
func (r *Rules) Domains() []string {
	names := make([]string, 0, len(r.domains))
	for name := range r.domains {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// domain is a set of rules and how what they count is accounted for.
type domain struct {
	name     string
	file     string
	resource string // canonical; of usage that names no other
	root     node

	// What goes beyond envoyproxy/ratelimit:
	atomic      bool     // descriptors of one token are decided all or nothing
	tokenKeys   []string // the first of these entries that a descriptor has is its token
	resourceKey string   // the entry that names the resource
}

// node is one level of a domain's rules: what may follow an entry.
type node struct {
	name     string // the entry's key, or key_value; what entries are matched with
	key      string
	value    string   // as configured, may hold *
	parts    []string // name cut at each *; nil without
	line     int
	children map[string]*node // by name
	patterns []*node          // the children with a *, in the files' order
	rule     *rule            // nil when a path that ends here is not limited

	shared        bool // share_threshold: all values of the pattern count as one
	valueToMetric bool
}

// rule is what a path of entries is allowed.
type rule struct {
	domain   string
	path     string // domain and entries as configured; a metric's label, bounded by the files
	limits   []quota.Limit
	answer   *pb.RateLimitResponse_RateLimit // current_limit; shared by all answers, read only
	blocked  bool                            // requests_per_unit: 0
	metadata *structpb.Struct

	unlimited bool
	shadow    bool // never refuses
	quotaMode bool // refuses only together with all others of this mode
	detailed  bool // detailed_metric
	// valuesInMetric says that some node on the way has value_to_metric.
	valuesInMetric bool
	name           string
	replaces       []string

	// perValue holds the limits of descriptors that are counted under a token of
	// their own: one for each set of values beside the token. See domain.under.
	perValue     sync.Map // uint64 → []quota.Limit
	perValueSize atomic.Int64
	counts       atomic.Pointer[counts]
}

// window is one unit of the format.
type window struct {
	unit   pb.RateLimitResponse_RateLimit_Unit
	length time.Duration
}

const day = 24 * time.Hour

// windows are aligned to the epoch, months and years among them, since gateways
// have been told so; see time_zone for those of the calendar.
var windows = map[string]window{
	"second": {pb.RateLimitResponse_RateLimit_SECOND, time.Second},
	"minute": {pb.RateLimitResponse_RateLimit_MINUTE, time.Minute},
	"hour":   {pb.RateLimitResponse_RateLimit_HOUR, time.Hour},
	"day":    {pb.RateLimitResponse_RateLimit_DAY, day},
	"week":   {pb.RateLimitResponse_RateLimit_WEEK, 7 * day},
	"month":  {pb.RateLimitResponse_RateLimit_MONTH, 30 * day},
	"year":   {pb.RateLimitResponse_RateLimit_YEAR, 365 * day},
}

// unitName returns the word for a unit, "" for one that there is not.
func unitName(unit pb.RateLimitResponse_RateLimit_Unit) string {
	name := strings.ToLower(unit.String())
	if _, ok := windows[name]; !ok {
		return ""
	}
	return name
}

// maxMultiplier bounds unit_multiplier; ten years bound the whole window.
const (
	maxMultiplier = 100_000
	maxWindow     = 10 * 366 * day
)

// match returns the rule that a descriptor's entries lead to, nil when there is
// none. At each level an entry's key and value win over the patterns, the first
// of these over the key alone; a choice is never undone, and a rule holds for
// descriptors of exactly its depth. trail receives the nodes on the way; it and
// scratch are returned to be used again.
func (d *domain) match(entries []*common.RateLimitDescriptor_Entry, scratch []byte, trail []*node) (*rule, []byte, []*node) {
	at := &d.root
	trail = trail[:0]
	for _, e := range entries {
		if scratch, at = at.next(e, scratch); at == nil {
			return nil, scratch, trail
		}
		trail = append(trail, at)
	}
	return at.rule, scratch, trail
}

// next returns the child that e leads to, nil when there is none.
func (n *node) next(e *common.RateLimitDescriptor_Entry, scratch []byte) ([]byte, *node) {
	if len(n.children) == 0 {
		return scratch, nil
	}
	scratch = append(append(append(scratch[:0], e.GetKey()...), '_'), e.GetValue()...)
	if child, ok := n.children[string(scratch)]; ok {
		return scratch, child
	}
	for _, child := range n.patterns {
		if fits(child.parts, scratch) {
			return scratch, child
		}
	}
	return scratch, n.children[e.GetKey()]
}

// fits reports whether text consists of parts, in their order, with anything
// between two of them.
func fits(parts []string, text []byte) bool {
	first, last := parts[0], parts[len(parts)-1]
	if len(text) < len(first)+len(last) || string(text[:len(first)]) != first || string(text[len(text)-len(last):]) != last {
		return false
	}
	text = text[len(first) : len(text)-len(last)]
	for _, part := range parts[1 : len(parts)-1] {
		i := indexOf(text, part)
		if i < 0 {
			return false
		}
		text = text[i+len(part):]
	}
	return true
}

func indexOf(text []byte, part string) int {
	for i := 0; i+len(part) <= len(text); i++ {
		if string(text[i:i+len(part)]) == part {
			return i
		}
	}
	return -1
}

// newLimit returns the limit of a rule or of a request's override. Its name is
// that of its window, so that rules of one window that follow each other in time
// go on counting on the same key, and another window begins afresh.
func newLimit(unit string, multiplier int64, requests uint32, resource string) quota.Limit {
	l := quota.Limit{Name: unit, Quota: int64(requests), Window: windows[unit].length * time.Duration(multiplier)}
	if multiplier > 1 {
		l.Name = strconv.FormatInt(multiplier, 10) + "-" + unit
	}
	// One descriptor is one token and one resource, whichever: its usage counter of
	// the minute is all that a limit per minute counts.
	l.Resources = []string{resource}
	return l
}

// unitOf returns the unit of which one is as long as l's window, UNKNOWN when there is none.
func unitOf(l *quota.Limit) pb.RateLimitResponse_RateLimit_Unit {
	for _, w := range windows {
		if w.length == l.Window {
			return w.unit
		}
	}
	return pb.RateLimitResponse_RateLimit_UNKNOWN
}

// sorted orders problems by file and line.
func sorted(list []Problem) []Problem {
	slices.SortStableFunc(list, func(a, b Problem) int {
		return cmp.Or(cmp.Compare(a.File, b.File), cmp.Compare(a.Line, b.Line))
	})
	return list
}
