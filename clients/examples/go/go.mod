module dualform.example/ask

go 1.25

require (
	google.golang.org/genproto/googleapis/rpc v0.0.0-20260817212433-ac3dfec99bb1
	google.golang.org/grpc v1.83.1
	google.golang.org/protobuf v1.36.12
)
