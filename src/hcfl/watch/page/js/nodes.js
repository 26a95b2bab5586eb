// A deployment on Flower: its nodes.

const nodesSection = () => null;
