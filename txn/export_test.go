package txn

// CountDelivered counts a record as delivered of which the producer does not know.
func (s *Session) CountDelivered() {
	s.produced.Add(1)
	s.deliveries.told.Add(1)
}
