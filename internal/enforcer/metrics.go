package enforcer

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tallygate/tallygate/internal/quota"
)

// metrics never have a label per token or resource: their number is bounded by
// that of the policies.
type metrics struct {
	decisions *prometheus.CounterVec // by policy and outcome
	units     *prometheus.CounterVec // by policy and outcome
	duration  prometheus.Histogram
	refused   prometheus.Counter
	orphans   prometheus.Counter
}

func newMetrics(r prometheus.Registerer) metrics {
	m := metrics{
		decisions: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "tallygate_enforcer_decisions_total", Help: "Decisions by policy and outcome (admitted, rejected, failed).",
		}, []string{"policy", "outcome"}),
		units: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "tallygate_enforcer_units_total", Help: "Units asked for, by policy and outcome.",
		}, []string{"policy", "outcome"}),
		duration: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "tallygate_enforcer_decision_seconds", Help: "Time to a decision, waiting for the store included.",
			Buckets: []float64{.0001, .00025, .0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1},
		}),
		refused: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "tallygate_enforcer_bad_requests_total", Help: "Requests that could not be understood.",
		}),
		orphans: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "tallygate_enforcer_orphans_total", Help: "Decisions for tokens whose assigned policy is not configured.",
		}),
	}
	if r != nil {
		r.MustRegister(m.decisions, m.units, m.duration, m.refused, m.orphans)
	}
	return m
}

func (m metrics) observe(policy string, outcome quota.Outcome, cost int64, took time.Duration) {
	m.decisions.WithLabelValues(policy, string(outcome)).Inc()
	m.units.WithLabelValues(policy, string(outcome)).Add(float64(cost))
	m.duration.Observe(took.Seconds())
}
