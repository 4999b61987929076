package tracker

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

type metrics struct {
	notifications prometheus.Counter
	units         prometheus.Counter
	recovered     prometheus.Counter
	rescans       prometheus.Counter
	published     prometheus.Counter
	publishErrors prometheus.Counter
	unaccounted   prometheus.Counter
	flush         prometheus.Histogram
}

func newMetrics(reg prometheus.Registerer, t *Tracker) *metrics {
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Name: "tallygate_tracker_" + name, Help: help})
	}
	gauge := func(name, help string, value func() float64) prometheus.Collector {
		return prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "tallygate_tracker_" + name, Help: help}, value)
	}
	m := &metrics{
		notifications: counter("notifications_total", "Changed counters that the feed told of."),
		units:         counter("units_total", "Units accounted for: admitted, rejected and refunded."),
		recovered:     counter("recovered_units_total", "Units that no notification told of and a scan found."),
		rescans:       counter("rescans_total", "Scans of the counters in grace."),
		published:     counter("published_records_total", "Usage records that the bus took."),
		publishErrors: counter("publish_errors_total", "Publish calls that failed and are tried again."),
		unaccounted:   counter("unaccounted_seconds_total", "Time for which counters ended unseen: no tracker was at work for longer than grace."),
		flush: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "tallygate_tracker_flush_seconds", Help: "Duration of applying all dirty counters.",
			Buckets: []float64{.001, .002, .005, .01, .02, .05, .1, .2, .5, 1, 2, 5},
		}),
	}
	if reg == nil {
		return m
	}
	reg.MustRegister(
		m.notifications, m.units, m.recovered, m.rescans, m.published, m.publishErrors, m.unaccounted, m.flush,
		gauge("dirty_cells", "Cells that changed and are not applied yet.", func() float64 {
			t.mu.Lock()
			defer t.mu.Unlock()
			return float64(len(t.dirty))
		}),
		gauge("backlog_records", "Records that the bus has not got yet.", func() float64 {
			t.mu.Lock()
			defer t.mu.Unlock()
			return float64(len(t.backlog))
		}),
		gauge("lag_seconds", "Age of the oldest change that is not published yet.", func() float64 {
			t.mu.Lock()
			defer t.mu.Unlock()
			if oldest := t.age.oldest(); !oldest.IsZero() {
				return time.Since(oldest).Seconds()
			}
			return 0
		}),
	)
	return m
}
