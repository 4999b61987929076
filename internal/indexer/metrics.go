package indexer

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tallygate/tallygate/internal/usage"
)

type metrics struct {
	records, events, refused, failures prometheus.Counter
	stalled                            prometheus.Gauge
	seconds                            prometheus.Histogram
}

func newMetrics(r prometheus.Registerer) *metrics {
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Name: "tallygate_indexer_" + name, Help: help})
	}
	m := &metrics{
		records:  counter("records_total", "Usage records stored, repeats included."),
		events:   counter("events_total", "Audit events stored, repeats included."),
		refused:  counter("refused_total", "Records and events refused because no database takes them."),
		failures: counter("ingest_failures_total", "Failed attempts to store a batch; each was made again."),
		stalled: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "tallygate_indexer_stalled", Help: "1 while the last attempt to store a batch has failed.",
		}),
		seconds: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "tallygate_indexer_ingest_seconds", Help: "Time to store a batch, failed attempts included.",
			Buckets: prometheus.ExponentialBuckets(0.001, 4, 8),
		}),
	}
	if r != nil {
		r.MustRegister(m.records, m.events, m.refused, m.failures, m.stalled, m.seconds)
	}
	return m
}

func (m *metrics) stored(batch usage.Batch, took time.Duration) {
	m.records.Add(float64(len(batch.Records)))
	m.events.Add(float64(len(batch.Events)))
	m.stalled.Set(0)
	m.seconds.Observe(took.Seconds())
}

func (m *metrics) failed() {
	m.failures.Inc()
	m.stalled.Set(1)
}
