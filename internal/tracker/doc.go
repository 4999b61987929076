// Package tracker turns changed counters into an exact account: metadata and
// series beside the counters, and usage records on the bus.
//
//	feed      tells which counters changed; it may lose changes if it says so
//	cell      one token, resource and minute: up to three counters, and a foreign one
//	dirty     the cells that changed since they were last applied
//	applied   what the account holds already, kept beside the counters
//	backlog   the latest record of every cell that the bus has not got yet
//
// A change takes this way:
//
//	feed → dirty ─ every 100 ms ─▶ Ledger.Apply → backlog ─▶ Publisher
//	scan ↗                         delta = counter − applied
//
// Nothing on it is a queue: dirty and backlog are maps, so a cell that changes a
// thousand times while Redis or the bus is slow costs one entry. Applying goes on
// while the bus is away, because counters expire and the account must not wait.
//
// A worked example. The counter of {abc, search, 12:07} goes to 5, then to 9, and
// the notification of the second change is lost:
//
//	apply   counter 5, applied 0   ops +5   record admitted 5
//	scan    counter 9, applied 5   ops +4   record admitted 9
//	apply   counter 9, applied 9   ops +0   record admitted 9, harmless
package tracker
