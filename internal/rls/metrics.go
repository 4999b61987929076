package rls

import (
	"strings"
	"sync"
	"sync/atomic"

	common "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	"github.com/prometheus/client_golang/prometheus"
)

// Outcomes of a descriptor's hits, the label of metrics.
const (
	admitted = "admitted"
	rejected = "rejected"
	shadowed = "shadowed" // would have been rejected, but for shadow_mode
)

// maxDetailed bounds the rules' labels that hold values of requests, which only
// detailed_metric and value_to_metric make; further ones count under the rule.
const maxDetailed = 1000

// metrics of the service. Labels are the paths of rules, bounded by the files.
type metrics struct {
	hits      *prometheus.CounterVec
	nearLimit *prometheus.CounterVec
	calls     *prometheus.HistogramVec
	unmatched prometheus.Counter
	loads     *prometheus.CounterVec

	detailed     sync.Map // path → *counts
	detailedSize atomic.Int64
	rules        sync.Map // path → *counts
}

// counts of one rule.
type counts struct {
	admitted, rejected, shadowed, near prometheus.Counter
}

func newMetrics(r prometheus.Registerer) *metrics {
	m := &metrics{
		hits: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "tallygate_rls_hits_total", Help: "Hits by rule and by what became of them: admitted, rejected, or shadowed (let pass by shadow_mode).",
		}, []string{"rule", "outcome"}),
		nearLimit: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "tallygate_rls_near_limit_hits_total", Help: "Admitted hits that left less than the near-limit share of the limit.",
		}, []string{"rule"}),
		calls: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "tallygate_rls_call_duration_seconds", Help: "Duration of ShouldRateLimit by overall outcome.",
			Buckets: []float64{.0001, .00025, .0005, .001, .0025, .005, .01, .025, .05, .1, .25, 1},
		}, []string{"outcome"}),
		unmatched: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "tallygate_rls_unmatched_descriptors_total", Help: "Descriptors that no rule matched.",
		}),
		loads: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "tallygate_rls_config_loads_total", Help: "Loads of the rules by outcome: loaded or refused.",
		}, []string{"outcome"}),
	}
	if r != nil {
		r.MustRegister(m.hits, m.nearLimit, m.calls, m.unmatched, m.loads)
	}
	return m
}

// loaded counts a load of the rules.
func (m *metrics) loaded(ok bool) {
	outcome := "refused"
	if ok {
		outcome = "loaded"
	}
	m.loads.WithLabelValues(outcome).Inc()
}

// of returns the counts of a rule for a descriptor.
func (m *metrics) of(rl *rule, entries []*common.RateLimitDescriptor_Entry, trail []*node) *counts {
	if !rl.detailed && !rl.valuesInMetric {
		if c := rl.counts.Load(); c != nil {
			return c
		}
		c := m.counts(&m.rules, rl.path)
		rl.counts.Store(c)
		return c
	}
	path := detailedPath(rl, entries, trail)
	if known, ok := m.detailed.Load(path); ok {
		return known.(*counts)
	}
	if m.detailedSize.Add(1) > maxDetailed {
		m.detailedSize.Add(-1)
		return m.counts(&m.rules, rl.path)
	}
	return m.counts(&m.detailed, path)
}

func (m *metrics) counts(in *sync.Map, path string) *counts {
	if known, ok := in.Load(path); ok {
		return known.(*counts)
	}
	made, _ := in.LoadOrStore(path, &counts{
		admitted: m.hits.WithLabelValues(path, admitted), rejected: m.hits.WithLabelValues(path, rejected),
		shadowed: m.hits.WithLabelValues(path, shadowed), near: m.nearLimit.WithLabelValues(path),
	})
	return made.(*counts)
}

// detailedPath is the path of a rule with the values that a request brought.
func detailedPath(rl *rule, entries []*common.RateLimitDescriptor_Entry, trail []*node) string {
	var b strings.Builder
	b.WriteString(rl.domain)
	for i, e := range entries {
		n := trail[i]
		b.WriteByte('.')
		value := strings.TrimPrefix(n.name, e.GetKey())
		value = strings.TrimPrefix(value, "_") // as configured, or nothing
		if !sharedAt(trail, i) && (rl.detailed || n.valueToMetric) {
			value = e.GetValue()
		}
		b.WriteString(e.GetKey())
		if value != "" {
			b.WriteByte('_')
			b.WriteString(value)
		}
	}
	return b.String()
}
