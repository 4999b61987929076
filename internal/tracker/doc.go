// Package tracker turns changed counters into an exact account: metadata and
// series beside the counters, and usage records on the bus.
package tracker
